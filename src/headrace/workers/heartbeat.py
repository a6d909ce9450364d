"""How long workers have been at the same thing, seen from the main process, through their marks."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.core.process.activity import PLACE, SPARE, STAGE, TASK, Activity
from headrace.workers.restart_policy import Sighting

START_PATIENCE = 60.0
"""Seconds that a worker may at least take to start, whatever the timeouts say: it may have to import much."""


class Watch:
    """Counts only while the main process waits for a result: before that, a worker may have waited for it."""

    def __init__(self, mark_of: Callable[[int], Activity]) -> None:
        self._mark_of = mark_of
        self._since: dict[int, tuple[Sighting, float]] = {}

    def begin(self) -> None:
        """Begins a wait."""
        self._since.clear()

    def sight(self, worker: int, *, hung: bool = False) -> Sighting:
        """Returns what a worker does now, or did last."""
        activity = self._mark_of(worker)
        return Sighting(worker, activity[TASK], activity[STAGE], activity[PLACE], activity[SPARE], hung)

    def hangs(self, worker: int, sample_timeout: float) -> tuple[Sighting, float] | None:
        """Returns what a worker hangs at, and the seconds it was allowed; None if it does not hang.

        A worker that starts has `START_PATIENCE` at least.
        """
        waited = self.waited(worker)
        seen = self.sight(worker, hung=True)
        if seen.at_work:
            limit = sample_timeout
        else:
            limit = max(sample_timeout, START_PATIENCE)

        if waited >= limit:
            return (seen, limit)
        return None

    def waited(self, worker: int) -> float:
        """Returns for how many seconds of this wait a worker has been at what it does now."""
        now = time.monotonic()
        seen = self.sight(worker)
        before, since = self._since.get(worker, (None, now))
        if before != seen:
            self._since[worker] = seen, now
            return 0.0

        return now - since
