"""What people type. `main` finds the command, `output` says what came of it, every command group has its own module."""
