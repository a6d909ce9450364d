"""The spans of an epoch, as a training process gets them from the I/O process."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import time
import weakref
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.core import framing
from headrace.core.errors import StorageError
from headrace.core.process.interruptible_wait import slices
from headrace.core.spans import Beginning, NothingYetError, Span
from headrace.sources.feed.feed import FeedStatus
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.log import LogSource
from headrace.storage.fetching import unix_sockets
from headrace.storage.fetching.io_client import IO_PROCESS
from headrace.telemetry.live_reads import LiveReads

SERVICE = "headrace.sources.feed.service"

DEATHS = 5
"""How often in a row an I/O process may end before anything has come of the source."""

TRIES = 5
"""How often a connection is tried with an I/O process that is being started anew."""

LOOK = "look for messages of the I/O process on stderr; it may have been killed for its memory"
"""What to do about an I/O process that ends again and again."""

STATUSES = 31
"""Of the feed, by which its latest rates are taken: one comes each second."""

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class FeedName:
    """Where the spans of a feed can be had, on this machine."""

    address: str
    """Of the I/O process."""
    name: str


class Connection:
    """A connection with the service of an I/O process. It is closed with this object."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # In a cycle that is collected, the socket could be finalized before a `__del__` of ours, and would complain.
        weakref.finalize(self, self.socket.close).atexit = False

    def close(self) -> None:
        """Closes it; may be called again."""
        self.socket.close()


def connect(address: str) -> Connection:
    """Returns a connection with the service of an I/O process. Raises `StorageError`."""
    for attempt in range(TRIES):
        connection = Connection()
        try:
            unix_sockets.connect(connection.socket, Path(address))
            framing.send(connection.socket, ("service", SERVICE))
            return connection
        except ConnectionError:
            # Its parent starts another one on the same socket.
            connection.close()
            time.sleep(0.1 * attempt)
        except BaseException:
            connection.close()
            raise

    raise StorageError.about("the I/O process does not answer", place=address, found=f"gone, {TRIES} times", fix=LOOK)


class LocalSupply:
    """See `SpanSupply`: a feed of this process's I/O process."""

    def __init__(self, source: LogSource, options: FeedOptions, beginning: Beginning, *, leads: bool = True) -> None:
        """leads: whether the feed closes spans itself; False: `tell` says which there are."""
        self._source = source
        self._options = options
        self._leads = leads
        self._io_process = IO_PROCESS.get()
        self.feed = FeedName(self._io_process.address, f"{os.getpid()}-{next(_NUMBERS)}")
        self.beginning = replace(beginning, spans=(), after=None)
        self._open: deque[Span] = deque(beginning.spans)
        self._after = beginning.after
        self._came: deque[Span] = deque()
        self._last = -1
        self._ended = False
        self._statuses: deque[FeedStatus] = deque(maxlen=STATUSES)
        self._waited = 0.0
        self._deaths = 0
        self._connection: Connection | None = None
        self._follow()

    def next_span(self) -> Span | None:
        while not self._came and not self._ended and self._is_readable(0):
            self._receive()
        if self._came:
            return self._came.popleft()
        if self._ended:
            return None
        raise NothingYetError

    def wait(self, timeout: float | None) -> None:
        if self._came or self._ended:
            return

        began = time.monotonic()
        try:
            self._is_readable(timeout)
        finally:
            self._waited += time.monotonic() - began

    def reads(self) -> LiveReads:
        if not self._statuses:
            return LiveReads(self._source.place, waited=self._waited)

        last = self._statuses[-1]
        first = self._statuses[0]
        took = max(last.at - first.at, 1e-9)
        lag_rate = 0.0
        if first.lag >= 0 and last.lag >= 0:
            lag_rate = (last.lag - first.lag) / took
        return LiveReads(
            place=self._source.place,
            records=last.records,
            bytes=last.nbytes,
            spans=last.spans,
            partitions=last.partitions,
            lag=last.lag,
            lag_rate=lag_rate,
            read_rate=max(last.records - first.records, 0) / took,
            waited=self._waited,
            full=last.full,
        )

    def fileno(self) -> int:
        return self._connected().socket.fileno()

    def passed(self, number: int) -> None:
        behind = False
        while self._open and self._open[0].number < number:
            # Should the I/O process be started anew, it goes on behind that.
            self._after = self._open.popleft()
            behind = True

        if behind:
            self._send(("passed", number))

    def tell(self, span: Span) -> None:
        """Tells the feed of a span that another rank has closed."""
        self._open.append(span)
        self._send(("told", span))

    def close(self) -> None:
        self._ended = True
        if self._connection is not None:
            self._connection.close()

    def _opened(self, beginning: Beginning) -> None:
        """Is told where the feed has begun."""
        self.beginning = beginning

    def _follow(self) -> None:
        """Begins the feed, or begins it anew behind what came of it."""
        self._connection = connect(self.feed.address)
        beginning = replace(self.beginning, spans=tuple(self._open), after=self._after)
        self._send(("follow", self.feed.name, self._source, self._options, beginning, self._leads))

    def _connected(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("this feed has not begun")
        return self._connection

    def _is_readable(self, timeout: float | None) -> bool:
        for seconds in slices(timeout):
            readable, _, _ = select.select([self._connected().socket], [], [], seconds)
            if readable:
                return True
        return False

    def _send(self, message: tuple[Any, ...]) -> None:
        # The end of an I/O process shows when something is received.
        with contextlib.suppress(OSError):
            framing.send(self._connected().socket, message)

    def _receive(self) -> None:
        """Takes in one message. Raises what is wrong with the source."""
        try:
            what, *rest = framing.receive(self._connected().socket)
        except (EOFError, OSError):
            self._connected().close()
            self._count_death()
            self._follow()
            return

        self._deaths = 0
        if what == "opened":
            self._opened(replace(rest[0], spans=(), after=None))
        elif what == "ended":
            self._ended = True
        elif what == "status":
            self._statuses.append(rest[0])
        elif what == "error":
            self.close()
            raise rest[0]
        elif what == "span" and rest[0].number > self._last:
            # After the I/O process was started anew, what came before comes again.
            span: Span = rest[0]
            self._last = span.number
            self._came.append(span)
            if not self._open or self._open[-1].number < span.number:
                self._open.append(span)

    def _count_death(self) -> None:
        self._deaths += 1
        if self._deaths > DEATHS:
            self.close()
            what = "the I/O process ends whenever it begins to read this source"
            raise StorageError.about(what, place=self._source.place, found=f"its end, {DEATHS + 1} times", fix=LOOK)


def commit(source: LogSource, positions: dict[int, int], identity: dict[str, str]) -> None:
    """Tells a source that all before these positions is done with. Raises `StorageError`, `StateError`.

    identity: of the log to which the positions belong.
    """
    io_process = IO_PROCESS.get()
    connection = connect(io_process.address)
    framing.send(connection.socket, ("commit", source, positions, identity))
    what, *rest = framing.receive(connection.socket)
    connection.close()
    if what == "error":
        raise rest[0]
