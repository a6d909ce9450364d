"""Entries of a sample or a batch: as arrays for a library that wants arrays and back as they were, and replaced."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import UsageError

Names = str | Sequence[str] | None


def as_names(names: Names) -> tuple[str, ...]:
    """Returns none, one or several names as a tuple."""
    if names is None:
        return ()
    if isinstance(names, str):
        return (names,)
    return tuple(names)


def refuse_missing(sample: Mapping[str, Any], names: Sequence[str], adapter: str) -> None:
    """Raises `UsageError` if a sample lacks one of the entries that an adapter was told of."""
    missing = []
    for name in names:
        if name not in sample:
            missing.append(name)

    if missing:
        found = "entries " + ", ".join(map(repr, sample))
        fix = f"name the sample's own entries: {adapter}(transform, image=...)"
        raise UsageError.about(f"no entry {missing[0]!r} in a sample", found=found, fix=fix)


def named_entry(sample: Mapping[str, Any], column: str, step: str) -> Any:
    """Returns the entry of a sample that a step was told of. Raises `UsageError` if there is none."""
    if column in sample:
        return sample[column]

    raise UsageError.about(
        f"no entry {column!r} in a sample",
        place=f"{step}(column={column!r})",
        found="entries " + ", ".join(map(repr, sample)),
        fix=f"name the sample's own entry: {step}(..., column=...)",
    )


def with_results(sample: Mapping[str, Any], results: Mapping[str, Any], dropped: str | None) -> dict[str, Any]:
    """Returns a copy of a sample with more entries. dropped: an entry that they replace, which goes."""
    kept = {}
    for name, value in sample.items():
        if name != dropped:
            kept[name] = value

    return kept | dict(results)


def as_array(value: object) -> NDArray[Any]:
    """Returns an array for an array, a tensor on the CPU or a list; memory is shared where it can be."""
    if isinstance(value, torch.Tensor):
        array: NDArray[Any] = value.numpy()
    else:
        array = np.asarray(value)
    return array


def like(changed: Any, original: object) -> Any:
    """Returns `changed` as what `original` is: a tensor, an array or a list, its numbers of the same type.

    Where nothing is left of rows [n, ...], the shape is [0, ...].
    """
    if isinstance(original, list):
        return list(changed)

    given = as_array(original)
    array = np.asarray(changed)
    if array.size == 0 and given.ndim > 1:
        array = array.reshape(0, *given.shape[1:])

    array = array.astype(given.dtype, copy=False)
    if isinstance(original, torch.Tensor):
        return torch.from_numpy(np.ascontiguousarray(array))
    return array


def entry_of(batch: Any, key: str | int | None, place: str) -> Any:
    """Returns an entry of a batch: of a mapping, by its key; of a named tuple, by its field; of a tuple or list, by its
    number. key: None: the batch itself. place: who asks. Raises `UsageError` if there is no such entry."""
    if key is None:
        return batch
    if isinstance(batch, Mapping):
        if key in batch:
            return batch[key]
        found = "entries " + ", ".join(map(repr, batch))
    elif isinstance(batch, (tuple, list)):
        number = _number_of(batch, key)
        if number is not None:
            return batch[number]
        found = f"a {type(batch).__name__} of {len(batch)} entries"
        if hasattr(batch, "_fields"):
            found += " " + ", ".join(map(repr, batch._fields))
    else:
        found = type(batch).__name__

    raise UsageError.about(
        f"no entry {key!r} in a batch",
        place=f"{place}(key={key!r})",
        found=found,
        expected="a mapping with that key, or a tuple or list with an entry of that number",
        fix="name the batch's own entry; key=None if the batch itself is meant",
    )


def with_entry(batch: Any, key: str | int | None, value: Any) -> Any:
    """Returns a copy of a batch with another value in the place of what `entry_of` returns."""
    if key is None:
        return value
    if isinstance(batch, MutableMapping):
        changed: Any = copy.copy(batch)
        changed[key] = value
        return changed
    if isinstance(batch, Mapping):
        return {**batch, key: value}

    parts = list(batch)
    parts[_number_of(batch, key)] = value  # type: ignore[index]  # `entry_of` found it
    if hasattr(batch, "_fields"):
        return type(batch)(*parts)
    return type(batch)(parts)


def _number_of(batch: Sequence[Any], key: str | int) -> int | None:
    """Returns the number of an entry of a tuple or list, counted from the beginning; None if there is none."""
    if isinstance(key, int):
        if -len(batch) <= key < len(batch):
            return key % len(batch)
        return None

    fields = getattr(batch, "_fields", ())
    if key in fields:
        return int(fields.index(key))
    return None
