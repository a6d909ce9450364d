"""The `headrace` command: argument parsing and printing only."""
