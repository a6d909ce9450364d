"""`python -m headrace`, the same as the `headrace` command."""

from headrace.cli.app import main

main()
