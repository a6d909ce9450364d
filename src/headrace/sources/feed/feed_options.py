"""How a log is cut into spans, and when an epoch ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.sources.feed.span_rule import Closing
from headrace.sources.log import Start

OnGap = Literal["raise", "skip"]


@dataclass(frozen=True)
class FeedOptions:
    """How a log is cut into spans, and when an epoch ends."""

    samples: int
    linger: float
    nbytes: int
    """Bytes of a span at most, but for a single record that has more."""
    budget: int
    """Bytes of spans that are kept ahead, and of records that wait."""
    start: Start = "earliest"
    until: float | Literal["now"] | None = None
    """The time at which an epoch ends, in seconds since 1970 (UTC)."""
    most: int | None = None
    """How many samples an epoch has at most."""
    idle: float | None = None
    """Seconds without a record after which an epoch ends."""
    on_gap: OnGap = "raise"
    look_every: float = 10.0
    """Seconds after which the feed looks for partitions that are new."""

    def closing(self) -> Closing:
        """Returns when spans are closed."""
        return Closing(self.samples, self.linger, self.nbytes)
