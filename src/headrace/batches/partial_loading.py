"""Loading sample by sample: which ones take long, and where to stop since other workers make the rest."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from headrace.core.process.activity import PLACE, STOP_ROW, STOP_TASK, TASK, Activity
from headrace.core.stragglers import MUCH, SLOW

WORTH = 20e-6
"""Seconds for each sample from which on they are looked at one by one: that costs 0.2 us for each."""


LOOKED_BACK = 8
"""Samples that say how long one usually takes: those of the batch, and of the ones before where it has fewer. Half of a
part of a batch may be the very sample that is slow."""


class PartialLoading:
    """What one worker notices while it loads samples one by one. Used in its thread."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._usual = WORTH
        self._times: list[float] = []
        self.rows = -1
        """How many samples of the last batch were loaded; -1: all."""
        self.slow: Sequence[tuple[int, float]] = ()
        """Places of the samples of the last batch that took much longer than the others, and their seconds."""
        self.slowest = math.nan
        """Seconds of the slowest sample of the last batch; NaN: they were not looked at one by one."""

    @property
    def is_worth_it(self) -> bool:
        """Whether the batches before took long enough to look at each sample."""
        return self._usual >= WORTH

    def begin(self) -> float:
        """A batch is begun. Returns the time."""
        self.rows = -1
        self.slow = ()
        self.slowest = math.nan
        return time.perf_counter()

    def loaded(self, count: int, began: float) -> None:
        """Notes that so many samples were loaded, none of which was looked at."""
        if count:
            self._usual = (time.perf_counter() - began) / count

    def places(self, count: int, began: float) -> Iterator[int]:
        """Yields the places of samples to load now, up to where the main process says that others make them."""
        activity = self._activity
        mine = activity[TASK] + 1
        times: list[float] = []
        before = began
        for place in range(count):
            # The main process writes the row first. If an older row is read here, fewer samples are made than it
            # thinks: the result says how many, and it has the others made.
            if activity[STOP_TASK] == mine and place >= activity[STOP_ROW] > 0:
                self.rows = place
                break
            activity[PLACE] = place
            yield place
            now = time.perf_counter()
            times.append(now - before)
            before = now

        self._note(times)

    def _note(self, times: list[float]) -> None:
        if not times:
            return
        self._times = [*self._times, *times][-max(len(times), LOOKED_BACK) :]
        self._usual = sorted(self._times)[len(self._times) // 2]
        self.slowest = max(times)
        limit = max(SLOW, MUCH * self._usual)
        if self.slowest > limit:
            self.slow = [(place, seconds) for place, seconds in enumerate(times) if seconds > limit]
