"""A checksum over every byte of a batch, the same for all loaders that deliver the same samples.

Unlike `telemetry/digest.py`, which looks at a part of large batches because it runs inside of a user's training, this
reads all of them, and takes byte strings for what they hold, not for what holds them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from headrace.data.blobs import Blobs


def checksum_of(batches: Iterable[Any]) -> int:
    """Returns the CRC-32 of all batches, in order: names, types, shapes and contents."""
    crc = 0
    for batch in batches:
        crc = extended(crc, batch)
    return crc


def extended(crc: int, part: object) -> int:
    """Returns a CRC-32 extended by a batch, or a part of one. Raises `TypeError` for what is no part of a batch."""
    if isinstance(part, Mapping):
        for name, value in part.items():
            crc = extended(zlib.crc32(repr(name).encode(), crc), value)
        return crc

    if isinstance(part, (list, tuple, Blobs)):
        crc = zlib.crc32(str(len(part)).encode(), crc)
        for value in part:
            crc = extended(crc, value)
        return crc

    if isinstance(part, str):
        part = part.encode("utf-8", "surrogateescape")
    if isinstance(part, (bytes, memoryview)):
        return zlib.crc32(part, zlib.crc32(str(len(part)).encode(), crc))

    if isinstance(part, torch.Tensor):
        array = part.numpy()
        head = f"{array.dtype.name} {array.shape}".encode()
        return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, zlib.crc32(head, crc))

    raise TypeError(f"a {type(part).__name__} is no part of a batch of stored data")
