"""Batches taken apart and put together again: torch's rules for containers, with something else in each tensor's place.

The rules are those of `pin_memory=True`: mappings and sequences are copied with what else belongs to them, named tuples
and tuples keep their type. Beside them, dataclasses are taken apart, as Lightning does. A `memoryview` stays one; torch
makes a list of numbers of it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

Change = Callable[[Any], Any]
"""Gets a tensor, or an object with a `to` of its own; returns what takes its place."""


def changed(value: Any, change: Change) -> Any:
    """Returns a batch with `change(part)` in the place of each tensor, and of each object that moves itself."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return value
    if isinstance(value, Mapping):
        return _changed_mapping(value, change)
    if callable(getattr(value, "to", None)):
        return change(value)
    if isinstance(value, tuple):
        parts = [changed(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Sequence):
        return _changed_sequence(value, change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        clone = copy.copy(value)
        for field in dataclasses.fields(value):
            # Also of a frozen one, and without its `__post_init__`.
            object.__setattr__(clone, field.name, changed(getattr(value, field.name), change))
        return clone
    return value


def _changed_mapping(value: Mapping[Any, Any], change: Change) -> Any:
    parts = {key: changed(part, change) for key, part in value.items()}
    try:
        if isinstance(value, MutableMapping):
            clone = copy.copy(value)
            clone.update(parts)
            return clone
        return type(value)(parts)  # type: ignore[call-arg]  # as torch tries it
    except TypeError:
        return parts


def _changed_sequence(value: Sequence[Any], change: Change) -> Any:
    parts = []
    is_same = True
    for part in value:
        made = changed(part, change)
        is_same = is_same and made is part
        parts.append(made)

    # Such as a `Blobs`, which cannot be built from a list.
    if is_same and not isinstance(value, MutableSequence):
        return value
    try:
        if isinstance(value, MutableSequence):
            clone = copy.copy(value)
            for number, part in enumerate(parts):
                clone[number] = part
            return clone
        return type(value)(parts)  # type: ignore[call-arg]  # as torch tries it
    except TypeError:
        return parts
