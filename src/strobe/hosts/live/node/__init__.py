"""One node as an operating-system process: a life for each incarnation, what it records and how."""
