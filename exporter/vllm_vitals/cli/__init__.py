"""The command line: one module a command of the daemon's own, and what a terminal shows. See `main.COMMANDS`."""
