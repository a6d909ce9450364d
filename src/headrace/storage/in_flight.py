"""How many requests to have under way at a time: found by measuring. Pure: it is told the time."""

from __future__ import annotations

FIRST = 8
"""Requests under way at the beginning."""

MOST = 256
"""Requests under way at most: each takes a thread, and a server sees that many connections."""

LONG_ENOUGH = 0.05
"""Seconds that a measurement takes at least."""

BETTER = 1.05
"""How much quicker it must become before more requests are taken for an improvement."""

PATIENCE = 20
"""Measurements for which a limit is kept that did not help to raise, before raising it is tried again."""


class InFlight:
    """Raises the limit while that brings more bytes a second, and halves it when a server says that it is busy.

    The limit is only judged over times in which it was reached: otherwise it was not what held the bytes back.
    """

    def __init__(self) -> None:
        self.limit = FIRST
        self._before: tuple[int, float] | None = None
        self._keep = 0
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self._began = now
        self._bytes = 0
        self._answers = 0
        self._reached = False

    def started(self, now: float, under_way: int) -> None:
        """A request begins; `under_way` counts it."""
        if under_way >= self.limit:
            self._reached = True
        if under_way == 1:
            # The line was idle: what was measured so far says nothing of what it can bring.
            self._begin(now)
            self._reached = under_way >= self.limit

    def finished(self, now: float, count: int) -> None:
        """A request has brought `count` bytes."""
        self._bytes += count
        self._answers += 1
        passed = now - self._began
        if passed < LONG_ENOUGH or self._answers < 2 * self.limit:
            return

        if self._reached:
            self._judge(self._bytes / passed)
        self._begin(now)

    def busy(self, now: float) -> None:
        """A server has refused a request because it has too many."""
        self.limit = max(self.limit // 2, 1)
        self._before = None
        self._keep = PATIENCE
        self._begin(now)

    def _judge(self, rate: float) -> None:
        if self._keep:
            self._keep -= 1
            return

        if self._before is None or rate > self._before[1] * BETTER:
            self._before = self.limit, rate
            self.limit = min(self.limit + max(self.limit // 2, 1), MOST)
            return

        # It did not help, so that the former limit is as good. Later the line may be another.
        self.limit = self._before[0]
        self._before = None
        self._keep = PATIENCE
