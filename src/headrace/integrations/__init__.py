"""headrace inside frameworks: what each of them needs so that the loader stays whole, and its state is saved.

Each module imports its framework where it is used, and nothing at its start.
"""
