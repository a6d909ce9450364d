"""A thread that reads a log ahead of `poll`, so that `poll` keeps its timeout whatever the server does.

It holds what it has read up to a number of bytes, then it reads nothing more until some of that was taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.sources.journal.receiver import Away
from headrace.sources.log import Positions, Records
from headrace.sources.outage import SourceOutage

AHEAD = 16 << 20
"""Bytes that are read ahead, about."""

FETCH = 2 << 20
"""Bytes that are asked for at once, about."""

WAIT = 0.25
"""Seconds that the thread waits at once: so long it may take until it ends."""


@dataclass
class Fetched:
    """What was read."""

    positions: Sequence[int]
    values: Sequence[bytes]
    at_end: bool
    """Whether there was nothing behind it."""


class LogReader(Protocol):
    """Reads a log. One thread calls it: `go_to` first, and again after each `Away`, which closes it before."""

    def go_to(self, position: int) -> None:
        """Connects, and begins there. Raises `Away`, `RecordsLostError`, `StorageError`."""

    def fetch(self, timeout: float, limit: int) -> Fetched:
        """Returns what comes next; waits for it up to `timeout` seconds. Raises as `go_to`."""

    def rest(self) -> None:
        """Keeps the connection alive. Raises `Away`."""

    def close(self) -> None:
        """Ends the connection. May be called at any time, also twice."""


class Following:
    """Reads ahead from where it was told to begin. Of its methods, one thread calls all."""

    def __init__(self, fetcher: LogReader, place: str) -> None:
        """place: of the log, without secrets."""
        self._fetcher = fetcher
        self._outage = SourceOutage(place)
        self._changed = threading.Condition()
        self._records: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._turn = 0
        """How often it was told where to begin: what was read for an earlier turn is dropped."""

        self._next = 0
        self._at_end = False
        self._error: BaseException | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def seek(self, position: int) -> None:
        """Begins there."""
        with self._changed:
            self._turn += 1
            self._next = position
            self._records.clear()
            self._size = 0
            self._at_end = False
            self._error = None
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-following", daemon=True)
            self._thread.start()

    def take(self, timeout: float, limit: int) -> tuple[list[int], list[bytes]]:
        """Returns positions and values of what comes next, none after `timeout` seconds; about `limit` bytes at most.

        Raises what the reader met, once all before that was taken.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._records:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    return [], []

            positions: list[int] = []
            values: list[bytes] = []
            total = 0
            while self._records:
                position, value = self._records[0]
                total += len(value)
                if values and total > limit:
                    break
                self._records.popleft()
                self._size -= len(value)
                positions.append(position)
                values.append(value)
            self._changed.notify_all()
        return positions, values

    @property
    def at_end(self) -> bool:
        """Whether all that there was is read and taken, as far as the reader has seen."""
        with self._changed:
            return self._at_end and not self._records

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        turn = -1
        while not self._closing:
            try:
                turn = self._read(turn)
            except Away as away:
                turn = -1
                self._fetcher.close()
                self._pause(self._outage.wait_after(str(away)))
            except BaseException as error:  # noqa: BLE001 - whoever polls gets it
                turn = -1
                self._fetcher.close()
                self._fail(error)
        self._fetcher.close()

    def _read(self, connected: int) -> int:
        """Reads once, if there is room. connected: the turn that the fetcher reads for. Returns that of now."""
        with self._changed:
            turn = self._turn
            position = self._next
            if turn == connected and self._size >= AHEAD:
                self._changed.wait(WAIT)
                if self._size >= AHEAD:
                    self._fetcher.rest()
                return connected

        if turn != connected:
            self._fetcher.go_to(position)
            self._outage.ended()
        fetched = self._fetcher.fetch(WAIT, FETCH)
        with self._changed:
            if turn == self._turn:
                self._records.extend(zip(fetched.positions, fetched.values, strict=True))
                self._size += sum(map(len, fetched.values))
                self._at_end = fetched.at_end
                if fetched.positions:
                    self._next = fetched.positions[-1] + 1
                    self._changed.notify_all()
        return turn

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(seconds)

    def _fail(self, error: BaseException) -> None:
        """Tells what was met, and waits until it is told to begin elsewhere."""
        with self._changed:
            turn = self._turn
            self._error = error
            self._changed.notify_all()
            while turn == self._turn and not self._closing:
                self._changed.wait()


class ReadAheadLog:
    """A log of one partition that a thread reads ahead: what all such logs share."""

    def __init__(self, reader: LogReader, place: str) -> None:
        """place: of the log, without secrets."""
        self._following = Following(reader, place)

    def partitions(self) -> Sequence[int]:
        """Returns the one partition."""
        return [0]

    def seek(self, positions: Positions) -> None:
        """Has `poll` go on there."""
        if 0 in positions:
            self._following.seek(positions[0])

    def poll(self, timeout: float, limit: int) -> list[Records]:
        """Returns what comes next. Raises `RecordsLostError`, `StorageError`."""
        positions, values = self._following.take(timeout, limit)
        if not positions:
            return []
        return [Records(0, positions, values, positions[-1] + 1)]

    def at_end(self) -> set[int]:
        """Returns the partition if the server had nothing more for a moment, as far as `poll` has seen."""
        return {0} if self._following.at_end else set()

    def close(self) -> None:
        """Ends the connection."""
        self._following.close()
