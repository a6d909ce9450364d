"""Copies of the user's objects."""

from __future__ import annotations

import copy
from typing import TypeVar

T = TypeVar("T")


def shallow_copy(thing: T) -> T:
    """Returns a copy with the same values, whose attributes are its own.

    `copy.copy` gives the copy the very dictionary of the attributes where `__getstate__` returns it and `__setstate__`
    keeps it, as in the streams of Hugging Face's `datasets`: then each sees what is set in the other.
    """
    copied = copy.copy(thing)
    if copied is not thing and hasattr(thing, "__dict__") and vars(copied) is vars(thing):
        copied.__dict__ = dict(vars(thing))
    return copied
