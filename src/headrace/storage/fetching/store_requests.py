"""The requests to one store: a server that is slow or gone does not hold up what comes from others."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.storage.fetching.in_flight import InFlight
from headrace.storage.fetching.ranges import LARGEST, ByteRange

FIRST_ANSWERS = 64
"""Requests that are kept small."""

FIRST_LARGEST = 1 << 20
"""Bytes that each of these brings at most. On a slow line, the first batch would wait for all that comes along."""

Use = tuple[int, int]
"""The number of a plan, and the position in it at which a range is wanted."""


@dataclass(eq=False)
class StoreRequests:
    """What is to be asked for, and what is under way. Guarded by the fetcher's lock."""

    queue: list[tuple[int, Use, int, ByteRange]] = field(default_factory=list)
    """A heap of ranges by urgency: first those that are waited for, then by plan and position.

    One may be in it several times, or be gone by now: the fetcher knows.
    """

    in_flight: InFlight = field(default_factory=InFlight)
    under_way: int = 0
    answers: int = 0
    """How many requests have ended."""

    last_used: float = 0.0
    """When a request began, in seconds of `time.perf_counter()`."""

    @property
    def room(self) -> int:
        """How many more requests may be made now."""
        return self.in_flight.limit - self.under_way

    @property
    def largest(self) -> int:
        """Bytes that a request brings along with the range that is wanted."""
        if self.answers < FIRST_ANSWERS:
            return FIRST_LARGEST
        return LARGEST
