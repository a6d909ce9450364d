"""How many requests to have under way at a time: found by measuring. Pure: it is told the time."""

from __future__ import annotations

FIRST = 32
"""Requests under way at the beginning."""

MOST = 256
"""Requests under way at most: each takes a thread, and a server sees that many connections."""

LONG_ENOUGH = 0.05
"""Seconds that a measurement takes at least."""

BETTER = 1.05
"""How much quicker it must become before more requests are taken for an improvement."""

PATIENCE = 20
"""Measurements for which a limit is kept that did not help to raise, before raising it is tried again."""

SETTLING = 0.5
"""Seconds behind a refusal in which further ones are of requests that were under way then."""


class InFlight:
    """Raises the limit while that brings more bytes a second, and halves it when a server says that it is busy.

    The limit is only judged over times in which it was reached: otherwise it was not what held the bytes back.

    Behind a refusal it goes back quickly to three quarters of where the server refused, by doubling, and from there on
    by one request a measurement, until it is there again.
    """

    def __init__(self) -> None:
        self.limit = FIRST
        self._before: tuple[int, float] | None = None
        self._keep = 0
        # The limit behind which more did not help.
        self._full_at: int | None = None
        # Where a server has refused, until the limit is there again; and when it did so last.
        self._refused_at: int | None = None
        self._refused = 0.0
        self._recovered = False
        # Answers that are still not measured since the limit was raised.
        self._unsettled = 0
        self._begin(0.0)

    @property
    def reason(self) -> str:
        """Why the limit is not higher; see `RemoteReads.limit_is`."""
        if self._refused_at is not None:
            return "refused"
        if self.limit >= MOST:
            return "most"
        if self._full_at is not None:
            return "measured"
        return "rising"

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
        if self._unsettled:
            # Of requests that began under another limit, or had to connect first.
            self._unsettled -= 1
            if not self._unsettled:
                self._begin(now)
            return

        self._bytes += count
        self._answers += 1
        passed = now - self._began
        if passed < LONG_ENOUGH or self._answers < 2 * self.limit:
            return

        before = self.limit
        if self._reached:
            self._judge(self._bytes / passed)
        if self.limit > before:
            self._unsettled = self.limit
        self._begin(now)

    def busy(self, now: float) -> None:
        """A server has refused a request because it has too many."""
        # All requests that were under way may be refused at once: that is one reason to halve the limit, and not many.
        if self._refused_at is not None and now - self._refused < SETTLING:
            return

        # Refusals without a good measurement between them belong to one storm, which began where it began.
        if self._refused_at is None or self._recovered:
            self._refused_at = self.limit
        self._refused = now
        self._recovered = False
        self.limit = max(self.limit // 2, 1)
        self._before = None
        self._keep = 0
        self._full_at = None
        self._begin(now)

    def _judge(self, rate: float) -> None:
        if self._refused_at is not None:
            self._recover(self._refused_at)
            return

        if self._keep:
            self._keep -= 1
            return

        if self._before is None or rate > self._before[1] * BETTER:
            # That a little more helps once may be chance.
            if self._full_at is not None and self.limit >= 2 * self._full_at:
                self._full_at = None
            self._before = self.limit, rate
            self.limit = min(self.limit + max(self.limit // 2, 1), MOST)
            return

        # It did not help, so that the former limit is as good. Later the line may be another.
        self.limit = self._before[0]
        self._before = None
        self._keep = PATIENCE
        self._full_at = self.limit

    def _recover(self, refused_at: int) -> None:
        """Raises the limit behind a refusal: the measurement that has just ended was without one."""
        self._recovered = True
        known_good = refused_at * 3 // 4
        if self.limit < known_good:
            self.limit = min(2 * self.limit, known_good)
        else:
            self.limit = min(self.limit + 1, MOST)

        if self.limit >= refused_at:
            self._refused_at = None
