"""The records of spans, as those who make batches read them: mapped memory, without a copy."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict

import pyarrow as pa

from headrace.core import framing
from headrace.core.errors import StorageError
from headrace.core.process import this_process
from headrace.core.spans import Span
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.feed.supply import Connection, FeedName, connect
from headrace.sources.log import LogSource

KEPT = 3
"""Spans that stay mapped: a batch may lie in two, and another one be made from the next."""

TRIES = 5
"""How often a span is asked for again when the I/O process ends meanwhile."""


class SpanReader:
    """Reads spans in one process. Any thread may call it. Holds nothing that a fork must not copy."""

    def __init__(self, source: LogSource, options: FeedOptions) -> None:
        self._source = source
        self._options = options
        self._forget()

    def table(self, feed: FeedName, span: Span) -> pa.Table:
        """Returns the records of a span; see `span_file`. Raises `StorageError`, `RecordsLostError`."""
        if self._process is not this_process.current:
            self._forget()

        key = feed.name, span.number
        with self._lock:
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = self._fetch(feed, span)
                while len(self._tables) > KEPT:
                    self._tables.popitem(last=False)
            else:
                self._tables.move_to_end(key)
            return table

    def _forget(self) -> None:
        self._process = this_process.current
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._tables: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        return {"source": self._source, "options": self._options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _fetch(self, feed: FeedName, span: Span) -> pa.Table:
        message = ("memory", feed.name, self._source, self._options, span)
        for attempt in range(TRIES):
            try:
                descriptor = self._ask(feed, message)
            except (EOFError, ConnectionError):
                # The I/O process is gone, and another one is started in its place.
                self._connection = None
                time.sleep(0.1 * attempt)
                continue
            except BaseException:
                # Ctrl-C, in the middle of an answer: what still comes belongs to nobody.
                self._connection = None
                raise

            try:
                return _mapped(descriptor)
            finally:
                os.close(descriptor)

        place = self._source.place
        raise StorageError.about("the I/O process does not answer", place=place, found=f"gone, {TRIES} times")

    def _ask(self, feed: FeedName, message: tuple[object, ...]) -> int:
        if self._connection is None:
            self._connection = connect(feed.address)
        framing.send(self._connection.socket, message)
        what, *rest = framing.receive(self._connection.socket)
        if what == "error":
            raise rest[0]

        _, descriptors, _, _ = socket.recv_fds(self._connection.socket, 1, 1)
        if not descriptors:
            raise EOFError("the other end closed the connection")
        return descriptors[0]


def _mapped(descriptor: int) -> pa.Table:
    with pa.memory_map(f"/dev/fd/{descriptor}") as source:
        return pa.ipc.open_file(source).read_all()
