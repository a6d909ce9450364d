"""How quickly bytes come over time, in memory that does not grow. Pure: it is told the time."""

from __future__ import annotations

from headrace.telemetry.remote_reads import TrafficWindow, best_rate

WIDTH = 0.25
"""Seconds of a window at the beginning."""

MOST = 240
"""Windows at most: of more, neighbours become one."""


class Meter:
    """Keeps windows of equal length, and the highest rate that there was."""

    def __init__(self) -> None:
        self._width = WIDTH
        self._origin = 0.0
        self._best = 0.0
        # One entry a window, from `_origin` on: its bytes, and the seconds of all requests in it.
        self._bytes: list[float] = []
        self._busy: list[float] = []

    def brought(self, began: float, ended: float, count: int) -> None:
        """A request that began and ended at these times has brought `count` bytes."""
        if not self._bytes:
            self._origin = began
        elif began - self._end > MOST * self._width / 2:
            # Nothing came for longer than half of what windows can hold: it would blur what comes now.
            self._forget(began)

        # Requests that began before the first window are counted from there on.
        began = max(began, self._origin)
        ended = max(ended, began)
        last = int((ended - self._origin) / self._width)
        while last >= MOST:
            self._widen()
            last = int((ended - self._origin) / self._width)

        missing = last + 1 - len(self._bytes)
        if missing > 0:
            self._bytes += [0.0] * missing
            self._busy += [0.0] * missing

        first = int((began - self._origin) / self._width)
        if first == last:
            self._bytes[first] += count
            self._busy[first] += ended - began
            return

        rate = count / (ended - began)
        for at in range(first, last + 1):
            start = max(began, self._origin + at * self._width)
            stop = min(ended, self._origin + (at + 1) * self._width)
            self._bytes[at] += rate * (stop - start)
            self._busy[at] += stop - start

    def windows(self) -> tuple[TrafficWindow, ...]:
        """Returns all of them, the earliest first. The last one may be going on."""
        found = []
        for at, (count, busy) in enumerate(zip(self._bytes, self._busy, strict=True)):
            found.append(TrafficWindow(self._origin + at * self._width, self._width, count, busy / self._width))

        return tuple(found)

    def best(self) -> float:
        """Returns the most bytes a second over `remote_reads.STRETCH`; 0 if nothing came for that long."""
        return max(self._best, best_rate(self.windows()))

    @property
    def _end(self) -> float:
        return self._origin + len(self._bytes) * self._width

    def _widen(self) -> None:
        self._best = self.best()
        self._width *= 2
        self._bytes = _in_pairs(self._bytes)
        self._busy = _in_pairs(self._busy)

    def _forget(self, now: float) -> None:
        self._best = self.best()
        self._width = WIDTH
        self._origin = now
        self._bytes = []
        self._busy = []


def _in_pairs(values: list[float]) -> list[float]:
    """Returns the sums of neighbours."""
    sums = []
    for at in range(0, len(values), 2):
        sums.append(sum(values[at : at + 2]))

    return sums
