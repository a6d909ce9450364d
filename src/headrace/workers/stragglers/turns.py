"""`stragglers="defer"`: a batch that is late gives its turn to one that is ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.stragglers import SLACK
from headrace.epoch.deferral import FARTHEST, Deferral
from headrace.workers.stragglers.lateness import Lateness
from headrace.workers.window import Window


class Turns:
    """Which batches of an epoch have changed places."""

    def __init__(
        self,
        deferral: Deferral,
        window: Window[Any],
        lateness: Lateness,
        numbers: Mapping[int, int],
        posted: Mapping[int, float],
        clock: Callable[[], float],
    ) -> None:
        """Args:

        numbers: by turn, the number of the batch that the sampler gave for it.
        posted: by task, when it was given out.
        """
        self._deferral = deferral
        self._window = window
        self._lateness = lateness
        self._numbers = numbers
        self._posted = posted
        self._clock = clock
        self._deferred: set[int] = set()  # tasks that were late, and gave their turns away
        self._told = False  # since the last delivery, that a batch may change places
        window.task_in = deferral.task_in

    def delivered(self, task: int) -> None:
        """Notes that the batch of a task was delivered."""
        self._told = False
        self._deferred.discard(task)

    @property
    def has_given_way(self) -> bool:
        """Whether the next batch has given its turn away before, and is late still."""
        return self._window.due in self._deferred

    @property
    def look_again(self) -> float | None:
        """Seconds after which the next batch may change places; None: it may now, or nobody knows when."""
        seconds = self._overdue_in
        if 0 < seconds < math.inf:
            return seconds
        return None

    def is_news(self) -> bool:
        """Tells whether the next batch may change places since now."""
        is_news = not self._told and self._overdue_in <= 0
        self._told |= is_news
        return is_news

    def give_way(self) -> bool:
        """Has the next batch change turns with one that is ready, if it is late and there is one."""
        window = self._window
        task = window.due
        if task not in self._deferred and (not self._lateness.is_noticed or self._overdue_in > 0):
            return False

        turn = window.turn
        number = self._numbers[turn]
        for other in window.ready_turns(task + FARTHEST):
            is_batch = window.arrived(self._deferral.task_in(other)).status == "batch"
            if is_batch and self._deferral.may_swap(number, self._numbers[other]):
                self._deferred.add(task)
                self._deferral.swap((turn, other), (number, self._numbers[other]))
                return True
        return False

    @property
    def _overdue_in(self) -> float:
        """Seconds after which the next batch is overdue: its worker has had time enough for it.

        Workers that make equal batches at the same time keep the loop waiting, too, but not behind the others. When
        the first result comes, all workers have begun.
        """
        begun = max(self._posted.get(self._window.due, 0.0), self._lateness.first_came)
        return begun + (self._window.ahead + SLACK) * self._lateness.usual - self._clock()
