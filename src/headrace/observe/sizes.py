"""How large a batch is, whatever it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def batch_length(batch: Any) -> int:
    """Returns how many samples a batch holds: the first dimension of the first tensor or array found, else 1."""
    if isinstance(batch, torch.Tensor) or hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    if isinstance(batch, Mapping) and batch:
        return batch_length(next(iter(batch.values())))
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)) and len(batch):
        return batch_length(batch[0])
    return 1


def batch_bytes(batch: Any) -> int:
    """Returns the bytes of the tensors and arrays of a batch; other things do not count."""
    nbytes = getattr(batch, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    if isinstance(batch, Mapping):
        return sum(batch_bytes(value) for value in batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        return sum(batch_bytes(value) for value in batch)
    return 0
