"""headrace inside frameworks: what each of them needs so that the loader stays whole, and its state is saved.

Each module imports its framework. Nothing of headrace imports these modules.
"""
