"""Where a job lives: its directory, its lease, its record, and what to do when all of that has moved."""
