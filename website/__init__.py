"""Builds the docs site from docs/, the docstrings and the command line: `make docs`, or `python -m website`."""
