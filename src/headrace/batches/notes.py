"""What is added to an exception of the user's, so that it says which sample it came from (PEP 678)."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.core.lengths import known_length
from headrace.core.spans import SpanKeys
from headrace.faults.bad_sample import path_of

SHOWN_KEYS = 8


def note(error: Exception, text: str) -> None:
    """Adds to an exception's text without changing the exception."""
    error.add_note(f"headrace: {text}")


def note_sample(error: Exception, dataset: object, key: Any) -> None:
    """Adds the key of the sample that raised, its file if the dataset knows that, and whether the key is too large."""
    path = path_of(dataset, key)
    if path is None or path in str(error):
        note(error, f"raised while loading the sample with key {key!r}")
    else:
        note(error, f"raised while loading the sample with key {key!r}, {path}")
    _note_length(error, dataset, key)


def _note_length(error: Exception, dataset: object, key: object) -> None:
    """Says so if an exception looks like that of a dataset that is shorter than its `__len__`."""
    if not isinstance(error, IndexError) or not isinstance(key, (int, np.integer)) or not hasattr(dataset, "__len__"):
        return

    length = known_length(dataset)
    if length is None:
        return

    if key >= length:
        note(error, f"the sampler gave key {key}, but len(dataset) is {length}")
    else:
        note(error, f"len(dataset) is {length}, so key {key} should exist: the length may be wrong")


def describe(index: object) -> str:
    """Names the keys of a batch, the first few of them if there are many."""
    if isinstance(index, (np.ndarray, SpanKeys)):
        index = index.tolist()
    if not isinstance(index, (list, tuple)):
        return f"the sample with key {index!r}"

    shown = ", ".join(map(repr, index[:SHOWN_KEYS]))
    if len(index) > SHOWN_KEYS:
        more = f", ... ({len(index)} in all)"
    else:
        more = ""

    return f"the batch with keys {shown}{more}"
