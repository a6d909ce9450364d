"""What the I/O process does for sources that never end: serves feeds, the memory of spans, and commits.

A client names this module when it connects; see `headrace.storage.fetching.io_process`. What it sends then:

    ("follow", feed, source, options, beginning, leads)   begins a feed; the connection is its own from then on
        ("told", span), ("passed", number)                of that feed
        and it is sent ("opened", beginning), ("span", span), ("ended",), ("error", error)
    ("memory", feed, source, options, span)               is answered by ("memory",) and a descriptor, or by an error
    ("commit", source, positions, identity)                      is answered by ("done",) or ("error", error)
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

from headrace.core import framing
from headrace.core.errors import StorageError
from headrace.core.spans import Beginning, Span
from headrace.sources.feed.feed import Feed, check_identity
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.log import LogSource, Positions

READ_AGAIN = 2
"""Spans that are kept which were read a second time."""

_FEEDS: dict[str, Feed] = {}
_AGAIN: dict[tuple[str, int], Feed] = {}
_LOCK = threading.Lock()


def serve(connection: socket.socket) -> None:
    """Answers a client until it is gone. Raises `EOFError`, `OSError`."""
    client = _Client(connection)
    try:
        while True:
            client.answer(framing.receive(connection))
    finally:
        client.close()


class _Client:
    """The other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()  # a feed sends from its own thread
        self._feed: Feed | None = None
        self._name = ""

    def answer(self, message: tuple[Any, ...]) -> None:
        what, *rest = message
        if what == "follow":
            self._follow(*rest)
        elif what == "told" and self._feed is not None:
            self._feed.tell(*rest)
        elif what == "passed" and self._feed is not None:
            self._feed.passed(*rest)
        elif what == "memory":
            self._give_memory(*rest)
        elif what == "commit":
            self._commit(*rest)

    def close(self) -> None:
        """Ends the feed of this connection."""
        if self._feed is None:
            return

        self._feed.close()
        with _LOCK:
            if _FEEDS.get(self._name) is self._feed:
                del _FEEDS[self._name]

    def _send(self, message: tuple[Any, ...]) -> None:
        # Whoever is gone needs no answer, and the reading end notices.
        with self._sending, contextlib.suppress(OSError):
            framing.send(self._connection, message)

    def _follow(self, name: str, source: LogSource, options: FeedOptions, beginning: Beginning, leads: bool) -> None:
        def send(message: tuple[Any, ...]) -> None:
            if message[0] == "error":
                message = ("error", framing.picklable(message[1]))
            self._send(message)

        self._name = name
        self._feed = Feed(source, options, beginning, send, leads=leads)
        with _LOCK:
            _FEEDS[name] = self._feed
        self._feed.start()

    def _give_memory(self, name: str, source: LogSource, options: FeedOptions, span: Span) -> None:
        descriptor = None
        with _LOCK:
            feed = _FEEDS.get(name)
        if feed is not None:
            descriptor = feed.memory_of(span)
        if descriptor is None:
            # The feed is through with it, or is gone with the I/O process that was before this one.
            again = _read_again(name, source, options, span)
            descriptor = again.memory_of(span)
            if descriptor is None:
                error = again.error or StorageError(f"{source.place}: span {span.number} is not to be had")
                self._send(("error", framing.picklable(error)))
                return

        try:
            with self._sending:
                framing.send(self._connection, ("memory",))
                socket.send_fds(self._connection, [b"\0"], [descriptor])
        finally:
            os.close(descriptor)

    def _commit(self, source: LogSource, positions: Positions, identity: dict[str, str]) -> None:
        try:
            reading = source.open()
            try:
                check_identity(source.place, identity, reading.identity)
                reading.commit(positions)
            finally:
                reading.close()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            self._send(("error", framing.picklable(error)))
            return

        self._send(("done",))


def _read_again(name: str, source: LogSource, options: FeedOptions, span: Span) -> Feed:
    """Returns a feed that reads one span, the same one for all who ask at the same time."""
    with _LOCK:
        feed = _AGAIN.get((name, span.number))
        if feed is None or feed.error is not None:
            beginning = Beginning(spans=(span,), begin=span.following())
            feed = _AGAIN[name, span.number] = Feed(source, options, beginning, lambda message: None, leads=False)
            feed.start()
        while len(_AGAIN) > READ_AGAIN:
            _AGAIN.pop(next(iter(_AGAIN))).close()
        return feed
