"""Batches of torch's `TensorDataset`: rows are gathered at once, instead of taken one by one and stacked again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

from headrace.core.batch_memory import BatchMemory
from headrace.core.plain_tensors import is_plain

BY_TORCH = 1 << 15
"""Numbers of a batch from which on torch would gather in several threads, which wait for busy cores; NumPy uses one."""


def gather_rows(
    dataset: TensorDataset, keys: Sequence[Any] | npt.NDArray[np.int64], memory: BatchMemory
) -> list[torch.Tensor] | None:
    """Returns what default collation makes of these samples; None where that has to be asked.

    keys: as `TensorDataset.__getitem__` takes them, negative ones too. Each tensor has one row for each key. Large ones
    lie in `memory`.
    """
    # Rows of plain tensors are the same gathered as stacked. Looked at anew each time: in the process of the loop, a
    # user may put in other tensors at any moment.
    tensors = dataset.tensors
    if not tensors or not all(map(is_plain, tensors)):
        return None
    places = np.asarray(keys)
    if places.ndim != 1 or places.dtype.kind != "i" or not len(places):
        return None

    length = len(tensors[0])
    lowest = places.min()
    if lowest < -length or places.max() >= length:
        return None  # torch has an error for it
    if lowest < 0:
        places = np.where(places < 0, places + length, places)
    elif not places.flags.writeable:
        places = places.copy()  # torch warns of arrays that nobody may write

    rows = torch.from_numpy(np.ascontiguousarray(places, np.int64))
    return [_gather(tensor, rows, memory) for tensor in tensors]


def _gather(tensor: torch.Tensor, rows: torch.Tensor, memory: BatchMemory) -> torch.Tensor:
    shape = (len(rows), *tensor.shape[1:])
    size = math.prod(shape)
    if size < BY_TORCH:
        return tensor.index_select(0, rows)

    if size * tensor.itemsize >= memory.smallest:
        out = memory.empty(shape, tensor.dtype)
    elif tensor.dtype is torch.bfloat16:
        out = torch.empty(shape, dtype=tensor.dtype)
    else:
        # In half the time: NumPy knows the type, so that neither tensor has to be seen as bytes.
        return torch.from_numpy(tensor.numpy().take(rows.numpy(), 0))

    # The places were checked; with "raise", NumPy would gather into memory of its own first.
    np.take(_bytes_of(tensor), rows.numpy(), 0, _bytes_of(out), "clip")
    return out


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Returns a tensor's memory, uint8 [rows, bytes of a row]: NumPy does not know each type of torch's."""
    return tensor.view(len(tensor), -1).view(torch.uint8).numpy()
