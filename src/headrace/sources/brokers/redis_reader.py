"""Reads a stream of Redis ahead, and finds out whether entries were deleted that it should have read."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from headrace.core.errors import RecordsLostError
from headrace.sources.brokers.read_ahead_thread import Fetched
from headrace.sources.brokers.redis_address import Entry, RedisAddress, id_at, value_of
from headrace.sources.journal.receiver import Away

LOGGER = logging.getLogger("headrace")

BATCH = 64
"""Entries that are asked for at first, when their size is not known."""

MOST = 5000
BLOCK = 0.25
"""Seconds for which the server waits for an entry, at most."""


class RedisFetcher:
    """Reads entries by id. A stream that does not exist is an empty one.

    Entries are deleted from the front, by XTRIM and MAXLEN. So nothing is lost as long as the first entry that is there
    lies before the position. Otherwise the server's count of all entries ever added tells, if it was known at the
    entry before; otherwise that entry itself, if it is still there.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._client: Any = None
        self._next = 0
        self._added: int | None = None
        """How many entries had been added up to the one before the position; None: it is not known."""

        self._count = BATCH
        self._has_said_missing = False

    def go_to(self, position: int) -> None:
        """Connects, and begins there. Raises `Away`, `RecordsLostError`, `StorageError`."""
        self.close()
        self._client = self._address.client(BLOCK)
        if position != self._next:
            self._added = None
        self._next = position
        self._ask("PING")

    def _ask(self, *command: object) -> Any:
        if self._client is None:
            raise Away("not connected")
        return self._address.asked(lambda: self._client.execute_command(*command))

    def fetch(self, timeout: float, limit: int) -> Fetched:
        """Returns the entries that come next; waits for them up to `timeout` seconds."""
        entries, information = self._look()
        self._check(information)
        if not entries:
            milliseconds = max(int(min(timeout, BLOCK) * 1000), 1)
            # What comes is read by the next look, which also finds out whether it is all.
            before = id_at(max(self._next - 1, 0))
            self._ask("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", self._address.name, before)
            return Fetched([], [], True)

        positions = [self._address.position_of(entry) for entry, _ in entries]
        values = [value_of(fields) for _, fields in entries]
        self._next = positions[-1] + 1
        size = sum(map(len, values)) // len(values)
        self._count = max(1, min(limit // max(size, 1), MOST, 4 * self._count))

        at_end = information["last-generated-id"] == entries[-1][0]
        self._count_added(entries, information, at_end)
        return Fetched(positions, values, at_end)

    def _count_added(self, entries: list[Entry], information: dict[str, Any], at_end: bool) -> None:
        """Counts up to the last of these entries, if the count is known for one of them or the one before."""
        added = information.get("entries-added")
        if added is None:
            self._added = None
        elif at_end:
            self._added = added
        elif entries[0][0] == information["first-entry"][0]:
            self._added = added - information["length"] + len(entries)
        elif self._added is not None:
            self._added += len(entries)

    def _look(self) -> tuple[list[Entry], dict[str, Any]]:
        """Returns entries from the position on, and what the server knows of the stream at the same moment."""
        if self._client is None:
            raise Away("not connected")

        def question() -> Any:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.exists(self._address.name)
                pipeline.xrange(self._address.name, min=id_at(self._next), count=self._count)
                pipeline.execute_command("XINFO STREAM", self._address.name)
                return pipeline.execute(raise_on_error=False)

        exists, entries, information = self._address.asked(question)
        if not isinstance(exists, Exception) and not exists:
            self._say_missing()
            return [], {}
        for answer in (exists, entries, information):
            if isinstance(answer, Exception):
                self._address.asked(_raised(answer))
        return entries, information

    def _say_missing(self) -> None:
        """Says in the log that there is no such stream: its name may be wrong."""
        if not self._has_said_missing:
            self._has_said_missing = True
            LOGGER.warning(
                "headrace: %s: there is no such key. It counts as a stream that nobody has written to yet.",
                self._address.place,
            )

    def _check(self, information: dict[str, Any]) -> None:
        """Raises `RecordsLostError` if entries from the position on were deleted, or the stream was made anew."""
        place = self._address.position_of
        if not information:
            end = 0
        else:
            last = information["last-generated-id"]
            end = place(last) + 1 if last != b"0-0" else 0
        if self._next > end:
            raise self._lost(f"id {id_at(self._next)}, and the stream ends before {id_at(end)}", end)
        if self._next == end:
            return

        first = information["first-entry"]
        if first and place(first[0]) <= self._next:
            return
        added = information.get("entries-added")
        if first and added is not None:
            number_of_first = added - information["length"] + 1
            if number_of_first == 1 or (self._added is not None and number_of_first <= self._added + 1):
                return
        if first and self._next and self._ask("XRANGE", self._address.name, *[id_at(self._next - 1)] * 2):
            return
        earliest = place(first[0]) if first else end
        raise self._lost(f"id {id_at(self._next)}, and the first one that is there is {id_at(earliest)}", earliest)

    def _lost(self, found: str, earliest: int) -> RecordsLostError:
        fix = f"begin at {earliest} (id {id_at(earliest)}) or later; or have the stream keep more (MAXLEN, XTRIM)"
        what = "the stream does not have the entries from which to continue"
        error = RecordsLostError.about(what, place=self._address.place, found=found, fix=fix)
        error.partition = 0
        error.earliest = earliest
        return error

    def rest(self) -> None:
        """Does nothing: an idle connection that the server closes is made again."""

    def close(self) -> None:
        """Ends the connection."""
        client = self._client
        self._client = None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()


def _raised(error: Exception) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it
