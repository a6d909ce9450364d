"""How large a batch is, whatever it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

LONG = 64
"""Entries of a list from which on not each is looked at."""


def batch_length(batch: object) -> int:
    """Returns how many samples a batch holds: the first dimension of the first tensor or array found, else 1."""
    if isinstance(batch, torch.Tensor) or hasattr(batch, "shape"):
        if len(batch.shape):
            return int(batch.shape[0])
        return 1

    if isinstance(batch, Mapping) and batch:
        return batch_length(next(iter(batch.values())))
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)) and len(batch):
        return batch_length(batch[0])
    return 1


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
        if len(batch) > LONG and isinstance(batch[0], (int, float, str)):
            return 0  # a list of labels or names
        return sum(map(batch_bytes, batch))

    return 0
