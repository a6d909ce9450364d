"""Measures stored forms of a user's own data against each other: what `headrace bench` prints.

`forms.py` writes the forms, `loading.py` runs the loaders, `measuring.py` is the whole measurement.
"""
