"""Batches of swipes as users of torch write them; with headrace no collate function is needed.

Both return what headrace.DataLoader makes of such samples by itself: for each entry a pair of values
[batch, longest, ...], filled up with zeros, and lengths [batch]. To show the difference, and to compare.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence


class Pair(NamedTuple):
    """values: [batch, longest, ...]; lengths: int64 [batch]."""

    values: torch.Tensor
    lengths: torch.Tensor


def pad_tensors(samples: list[dict[str, Any]]) -> dict[str, Pair]:
    """Pads with torch's own function."""
    batch = {}
    for name in samples[0]:
        tensors = [torch.from_numpy(sample[name]) for sample in samples]
        lengths = torch.tensor([len(tensor) for tensor in tensors])
        batch[name] = Pair(pad_sequence(tensors, batch_first=True), lengths)
    return batch


def pad_arrays(samples: list[dict[str, Any]]) -> dict[str, Pair]:
    """Pads in NumPy, and makes one tensor of an entry."""
    batch = {}
    for name in samples[0]:
        arrays = [sample[name] for sample in samples]
        lengths = [len(array) for array in arrays]
        out = np.zeros((len(arrays), max(lengths), *arrays[0].shape[1:]), arrays[0].dtype)
        for row, array, length in zip(out, arrays, lengths, strict=True):
            row[:length] = array
        batch[name] = Pair(torch.from_numpy(out), torch.tensor(lengths))
    return batch
