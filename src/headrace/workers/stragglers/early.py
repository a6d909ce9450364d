"""Batches that are drawn before they are due, since slow samples of them are to be begun early."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.batches.index import can_be_cut
from headrace.core.spans import NothingYetError
from headrace.core.stragglers import FARTHER, SPARE
from headrace.epoch.slow_samples import SlowSamples


class DrawnAhead:
    """The next batches of the sampler, and where their slow samples are."""

    def __init__(self, take: Callable[[], tuple[int, Any]], samples: SlowSamples) -> None:
        """take: asks the sampler. See `Epoch.take`."""
        self._take = take
        self.samples = samples
        self._drawn: deque[tuple[int, Any]] = deque()
        self._slow: deque[tuple[int, int]] = deque()  # tasks and rows
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self._drawn)

    def take(self) -> tuple[int, Any]:
        """Returns the next batch; see `Epoch.take`."""
        if self._drawn:
            return self._drawn.popleft()
        return self._take()

    def far_enough(self, batch_size: int, workers: int, limit: int) -> int:
        """Returns how many batches to draw, so that the slowest sample can be made until its batch is due."""
        seconds = self.samples.usual * batch_size / workers
        return int(min(FARTHER * self.samples.longest / max(seconds, 1e-6) + limit, SPARE))

    def draw(self, count: int, next_task: int) -> None:
        """Draws so many batches ahead. next_task: the task that the first of them will be."""
        while not self._ended and len(self._drawn) < count:
            try:
                number, index = self._take()
            except (StopIteration, NothingYetError):
                self._ended = True
                return
            task = next_task + len(self._drawn)
            self._drawn.append((number, index))
            if can_be_cut(index):
                slow = self.samples.rows_in(index.index)
                # One sample is left for the worker that is given the batch.
                self._slow.extend((task, row) for row in slow[: len(index.index) - 1])

    def next_slow(self, next_task: int) -> tuple[int, int] | None:
        """Returns task and row of the next slow sample whose batch was not given out; None: there is none."""
        while self._slow and self._slow[0][0] < next_task:
            self._slow.popleft()
        if self._slow:
            return self._slow[0]
        return None

    def pass_slow(self) -> None:
        """Goes on behind that sample."""
        self._slow.popleft()

    def index_of(self, task: int, next_task: int) -> Any:
        """Returns the index of a task that was drawn."""
        return self._drawn[task - next_task][1]
