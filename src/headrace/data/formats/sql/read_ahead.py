"""What is read before it is asked for: runs of rows that follow from the last requests, by threads, some bytes ahead.

Requests in order are 0 .. 511, 512 .. 1023 and so on; one of four workers is asked for every fourth of these. Both are
told by the distance of two requests. A segment is what several of the requests to come ask for, read by one query.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence

from headrace.data.formats.columns import Block
from headrace.data.formats.sql.columns import TableRows

BYTES = 2 << 20
"""Of a segment, about."""

MOST = 1 << 15
"""Rows of a segment, at most."""

RANGES = 64
"""Runs of a segment, at most: each is a condition of its query."""

SEGMENTS = 2
"""How many are read ahead of the one that is in use."""

GROWTH = 4
"""By how much a segment is larger than the one before it, until it has `BYTES`: the first one comes soon."""

Run = tuple[int, int]
Read = Callable[[Sequence[Run], Sequence[str]], TableRows]


class Segment:
    """Rows of some runs, which a thread reads."""

    def __init__(self, runs: Sequence[Run], names: Sequence[str], read: Read) -> None:
        self.names = names
        self._runs = runs
        self._starts = [start for start, _ in runs]
        self._read = read
        self._rows: TableRows | None = None
        self._done = threading.Event()
        threading.Thread(target=self._work, name="headrace-sql", daemon=True).start()

    def _work(self) -> None:
        try:
            self._rows = self._read(self._runs, self.names)
        except Exception:  # noqa: BLE001 - whoever asks for a row reads it again, and gets the error
            self._rows = None
        finally:
            self._done.set()

    def place_of(self, start: int, stop: int) -> int | None:
        """Returns where a run begins among the rows; None if it is not there as a whole."""
        number = bisect.bisect_right(self._starts, start) - 1
        if number < 0 or stop > self._runs[number][1]:
            return None
        before = sum(last - first for first, last in self._runs[:number])
        return before + start - self._runs[number][0]

    def rows(self) -> TableRows | None:
        """Returns the rows, once they are there; None if they could not be read."""
        self._done.wait()
        return self._rows


def predicted(last: Run, step: int, rows: int, length: int) -> list[Run]:
    """Returns the runs that follow a request, in `step`s: about so many rows, neighbours as one.

    length: of all rows; nothing behind it is asked for.
    """
    size = last[1] - last[0]
    runs: list[Run] = []
    for number in range(1, max(rows // size, 1) + 1):
        start = last[0] + number * step
        stop = min(start + size, length)
        if start >= length:
            break
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        elif len(runs) < RANGES:
            runs.append((start, stop))
        else:
            break

    return runs


class RowReadAhead:
    """Answers requests for runs of rows, and reads ahead while they follow each other. For any number of threads."""

    def __init__(self, read: Read, length: int, row_bytes: float = 0.0) -> None:
        """row_bytes: of a row, where they are known."""
        self._read = read
        self._length = length
        self._lock = threading.Lock()
        self._last: Run | None = None
        self._step = 0
        self._segments: list[Segment] = []
        self._current = -1
        self._reached: Run = (0, 0)
        self._rows = 0
        self.row_bytes = row_bytes
        """Bytes of a row, as far as is known; 0: not yet."""

    def fetch(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """Returns rows start .. stop-1. Raises what reading raises, and `SampleError`."""
        step = 0
        with self._lock:
            found = self._find(start, stop, names)
            if found is None:
                step = self._step_to(start, stop)
                self._segments = []
                self._rows = 0
                self._current = -1
                if step and self.row_bytes:
                    # The first segment begins with the rows that are wanted now.
                    self._reached = (start - step, stop - step)
                    self._top_up(names)
                    found = self._find(start, stop, names)
            else:
                self._last = (start, stop)
                self._top_up(names)

        if found is not None:
            segment, place = found
            rows = segment.rows()
            if rows is not None:
                self._measure(rows)
                return rows.run(place, place + stop - start)

        rows = self._read([(start, stop)], names)
        self._measure(rows)
        if step and found is None:
            with self._lock:
                self._reached = (start, stop)
                self._top_up(names)
        return rows.run(0, stop - start)

    def _measure(self, rows: TableRows) -> None:
        self.row_bytes = rows.nbytes / max(len(rows), 1)

    def _find(self, start: int, stop: int, names: Sequence[str]) -> tuple[Segment, int] | None:
        for number, segment in enumerate(self._segments):
            place = segment.place_of(start, stop)
            if place is not None and segment.names == names:
                # One that was passed by stays: threads ask for neighbours in any order.
                passed = max(number - 1, 0)
                del self._segments[:passed]
                self._current = number - passed
                return segment, place
        return None

    def _step_to(self, start: int, stop: int) -> int:
        """Notes a request that no segment holds. Returns the distance to the next one; 0 if it cannot be told."""
        last = self._last
        self._last = (start, stop)
        if last is None:
            self._step = stop - start if start == 0 and stop > 1 else 0
            return self._step

        distance = start - last[0]
        # Behind a request its neighbour, or another one at the same distance as the last time.
        if distance > 0 and distance in (last[1] - last[0], self._step):
            self._step = distance
            return distance

        self._step = max(distance, 0)
        if start == 0 and stop > 1:
            self._step = stop - start
            return self._step
        return 0

    def _top_up(self, names: Sequence[str]) -> None:
        """Begins segments behind what is read, until there are enough."""
        while len(self._segments) - self._current <= SEGMENTS:
            most = min(MOST, int(BYTES / max(self.row_bytes, 1.0)))
            size = self._reached[1] - self._reached[0]
            self._rows = min(max(self._rows, size) * GROWTH, max(most, size))
            runs = predicted(self._reached, self._step, self._rows, self._length)
            if not runs:
                return
            segment = Segment(runs, names, self._read)
            self._segments.append(segment)
            self._reached = self._last_request(runs, size)

    def _last_request(self, runs: Sequence[Run], size: int) -> Run:
        """Returns the last of the requests that make up some runs."""
        first, stop = runs[-1]
        if self._step != size:
            return first, first + size
        whole = max((stop - first - 1) // size, 0)
        return first + whole * size, first + whole * size + size
