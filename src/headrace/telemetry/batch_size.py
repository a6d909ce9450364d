"""How large a batch is, whatever it consists of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

LONG = 8
"""Entries of a list of numbers or names from which on not each is looked at."""

FEW = 16
"""Entries of a list in which a tensor is looked for."""

SINGLE = (str, bytes, int, float)
"""Samples without a dimension, of which a list may hold many."""


def batch_length(batch: object) -> int:
    """Returns how many samples a batch holds.

    That is the first dimension of the first tensor or array found; without any, the length of the first list of texts;
    else 1.
    """
    found = _first_dimension(batch)
    if found is None:
        found = _length_of_texts(batch)
    if found is None:
        return 1
    return found


def _first_dimension(batch: object) -> int | None:
    if isinstance(batch, SINGLE) or _is_list_of(SINGLE, batch):
        return None
    if isinstance(batch, torch.Tensor) or hasattr(batch, "shape"):
        if len(batch.shape):
            return int(batch.shape[0])
        return 1

    for part in _parts(batch):
        found = _first_dimension(part)
        if found is not None:
            return found
    return None


def _is_list_of(kinds: tuple[type, ...], batch: object) -> bool:
    """Tells whether a long list begins and ends with one of these kinds, and so is taken to hold nothing else."""
    if not isinstance(batch, (list, tuple)) or len(batch) <= LONG:
        return False
    return isinstance(batch[0], kinds) and isinstance(batch[-1], kinds)


def _length_of_texts(batch: object) -> int | None:
    if isinstance(batch, SINGLE):
        return None
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], (str, bytes)):
        return len(batch)

    for part in _parts(batch):
        found = _length_of_texts(part)
        if found is not None:
            return found
    return None


def _parts(batch: object) -> Iterable[object]:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes, bytearray, memoryview, range)):
        return itertools.islice(batch, FEW)
    return ()


def batch_bytes(batch: object) -> int:
    """Returns the bytes of the tensors, arrays and buffers of a batch; other things do not count."""
    if isinstance(batch, torch.Tensor):
        if batch.layout is torch.strided and not batch.is_nested:
            return batch.nbytes
        return 0

    if isinstance(batch, (np.ndarray, memoryview)):
        return int(batch.nbytes)
    if isinstance(batch, (bytes, bytearray)):
        return len(batch)
    if isinstance(batch, Mapping):
        return sum(map(batch_bytes, batch.values()))

    if isinstance(batch, (list, tuple)):
        if _is_list_of((int, float, str), batch):
            return 0  # labels or names
        return sum(map(batch_bytes, batch))

    return 0
