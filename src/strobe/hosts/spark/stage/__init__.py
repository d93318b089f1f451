"""One query and its agent: what it reads and writes, when it records, how it starts again."""
