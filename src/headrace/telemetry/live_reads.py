"""What a loader has read from a source that never ends, and how far the source is ahead of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LiveReads:
    """Of the epoch that runs, or ran last. Sizes are in bytes, times in seconds."""

    place: str = ""
    """The source, as a user would call it."""
    records: int = 0
    """That were read."""
    bytes: int = 0
    """Of those."""
    spans: int = 0
    """That were closed."""
    partitions: int = 0
    lag: int = -1
    """Records that the source has and that were not read yet; -1: not known."""
    lag_rate: float = 0.0
    """How many more these become each second."""
    read_rate: float = 0.0
    """Records that were read each second, of late."""
    waited: float = 0.0
    """For which the training loop had nothing, since the source gave nothing."""
    full: float = 0.0
    """For which nothing was read, since what was read ahead filled the memory that it may take."""

    @property
    def is_empty(self) -> bool:
        """Whether all that the source has is read."""
        return self.lag == 0

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> LiveReads:
        """Returns what `dataclasses.asdict` returned; what an older version did not know keeps its default."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in known})
