"""Entries of a sample, as arrays for a library that wants arrays, and back as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        cure = f"name the sample's own entries: {adapter}(transform, image=...)"
        raise UsageError.about(f"no entry {missing[0]!r} in a sample", found=found, cure=cure)


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
