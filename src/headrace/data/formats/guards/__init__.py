"""Checks of files from strangers before a library reads them: sizes, nesting and references that cannot be true."""
