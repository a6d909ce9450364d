"""Measures stored forms of a user's own data against each other: what `headrace bench` prints.

`forms.py` writes the forms, `loader_passes.py` runs the loaders, `comparison.py` is the whole measurement.
"""
