"""What a request has brought, cut into its ranges, and the memory that stays with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.fetching.range_sources import Brought
from headrace.storage.fetching.ranges import ByteRange

LARGE = 64 << 10
"""Bytes from which on an answer is kept as it came; of smaller ones copies are kept, which take what they have."""

WASTE = 1 / 16
"""The share of an answer that nobody wants from which on copies are kept, too."""


class Buffer:
    """Memory in which fetched ranges lie. It counts as held until the last of them is dropped."""

    __slots__ = ("ranges", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranges = 0


Part = tuple[memoryview, Buffer]
"""The bytes of a range, and the memory in which they lie."""


class RequestOutcome(NamedTuple):
    """What became of a request."""

    brought: Brought | None = None
    parts: list[Part] | None = None
    """Of each range; None: they were not brought, or lie in the cache."""
    error: BaseException | None = None
    began: float = 0.0
    """In seconds of `time.perf_counter()`."""


def span_of(ranges: Sequence[ByteRange]) -> int:
    """Returns the bytes from the first of some ranges to the last."""
    return max(wanted.stop for wanted in ranges) - ranges[0].start


def parts_of(data: memoryview, ranges: Sequence[ByteRange], *, stays: bool) -> list[Part]:
    """Returns the bytes of each range, and the memory that they keep.

    stays: whether they are kept for long. Then they are copied where otherwise more memory would stay than they have:
    what lies between them, and around small answers, which clients cut out of larger buffers.
    """
    start = ranges[0].start
    views = [data[wanted.start - start : wanted.stop - start] for wanted in ranges]
    whole = memoryview(data.obj).nbytes
    useful = sum(wanted.size for wanted in ranges)
    if not stays or (whole >= LARGE and useful >= whole * (1 - WASTE)):
        buffer = Buffer(whole)
        return [(view, buffer) for view in views]

    parts = []
    for view in views:
        copied = memoryview(bytes(view))
        parts.append((copied, Buffer(len(copied))))

    return parts
