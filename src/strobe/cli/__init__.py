"""The command line. `main` finds the command, `output` prints its result, every command group has its own module."""
