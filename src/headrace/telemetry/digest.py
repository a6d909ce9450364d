"""A checksum over a sample of each batch, so that two runs can be seen to have got the same data."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

SAMPLED = 32 << 10
"""Of a tensor with more bytes than this, about so many are looked at, evenly spread."""


def extend_digest(digest: int, batch: object) -> int:
    """Returns the CRC-32 of all batches so far, `digest`, extended by a batch: its structure, shapes, and a sample.

    Small dense CPU tensors and arrays are read whole, of large ones some bytes; other leaves count by their `repr`.
    """
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            digest = extend_digest(zlib.crc32(repr(key).encode(), digest), value)
        return digest

    if isinstance(batch, (bytes, bytearray, memoryview)):
        return zlib.crc32(batch, zlib.crc32(b"bytes", digest))

    if isinstance(batch, Sequence) and not isinstance(batch, str):
        for value in batch:
            digest = extend_digest(digest, value)
        return digest

    if isinstance(batch, torch.Tensor) and batch.layout is torch.strided and batch.device.type == "cpu":
        data = batch.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif isinstance(batch, np.ndarray) and batch.dtype != object:
        data = np.ascontiguousarray(batch).reshape(-1).view(np.uint8)
    else:
        return zlib.crc32(repr(batch).encode(), digest)

    # An odd step: with an even one, only some bytes of each number would be looked at.
    step = data.size // SAMPLED | 1
    return zlib.crc32(data[::step].tobytes(), zlib.crc32(repr(tuple(batch.shape)).encode(), digest))
