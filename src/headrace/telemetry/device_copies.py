"""What a loader has copied to a device, and how long that took there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

RECENT = 1024
"""Copies that are kept, the latest ones."""


@dataclass(frozen=True)
class DeviceCopies:
    """Over all batches of a loader. Sizes are in bytes, times in seconds of `time.perf_counter()`."""

    device: str = ""
    batches: int = 0
    """That were copied."""
    bytes: int = 0
    """Of those."""
    image_bytes: int = 0
    """The part of them that is 32-bit floats of four or five dimensions, as images and videos are."""
    timed: int = 0
    """Batches of which the device has told how long their copies took."""
    timed_bytes: int = 0
    seconds: float = 0.0
    """Of the device, for those that were timed."""
    recent: tuple[tuple[float, float, int], ...] = ()
    """When the latest copies began and ended on the device, and their bytes."""

    @property
    def rate(self) -> float:
        """Bytes that were copied each second; NaN: not measured."""
        if self.seconds <= 0:
            return math.nan
        return self.timed_bytes / self.seconds

    @property
    def bytes_of_batch(self) -> float:
        """Bytes of a batch, on average."""
        return self.bytes / max(self.batches, 1)

    @property
    def seconds_of_batch(self) -> float:
        """Seconds that the device copies a batch, on average; NaN: not measured."""
        if not self.timed:
            return math.nan
        return self.seconds / self.timed

    @property
    def smaller_as_bytes(self) -> float:
        """How many times less would be copied if images came as 8-bit numbers."""
        return self.bytes / max(self.bytes - 0.75 * self.image_bytes, 1)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> DeviceCopies:
        """Returns what `dataclasses.asdict` returned; what an older version did not know keeps its default."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in given.items() if name in known}
        recent = tuple((float(begin), float(end), int(nbytes)) for begin, end, nbytes in values.pop("recent", ()))
        return cls(**values, recent=recent)
