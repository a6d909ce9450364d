"""When the batch that the loop waits for counts as late, and how many finished ones may wait behind it then."""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.core.stragglers import LATE, OVERDUE, SPARE

FORGET = 0.8
"""Share of the older batches in the mean of their times, when another one comes."""


class Lateness:
    """What an epoch's batches usually take."""

    def __init__(self, workers: int, spare_bytes: int, clock: Callable[[], float]) -> None:
        """spare_bytes: of finished batches that may wait behind one that is late."""
        self.spare_bytes = spare_bytes
        self.spare = 0
        """How many of the largest batches that is."""
        self.is_noticed = False
        """Whether the next batch is late, as was noticed since the last delivery."""
        self.usual = 0.0
        """Seconds that a worker takes for a batch."""
        self.first_came = math.inf
        """When the first result came."""
        self._largest = 0
        self._workers = workers
        self._clock = clock

    @property
    def patience(self) -> float:
        """Seconds after which the loop has waited for long."""
        return max(LATE, OVERDUE * self.usual / self._workers)

    def note(self, nbytes: int, seconds: float) -> None:
        """Notes that a result has come, and what it took. NaN, or 0 seconds: it was not timed."""
        if self.first_came == math.inf:
            self.first_came = self._clock()
        if seconds > 0:
            if self.usual:
                self.usual = FORGET * self.usual + (1 - FORGET) * seconds
            else:
                self.usual = seconds
        if nbytes > self._largest:
            self._largest = nbytes
            self.spare = min(self.spare_bytes // self._largest, SPARE)
