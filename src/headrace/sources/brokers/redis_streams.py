"""Streams of Redis as logs of one partition, read by entry id and never as a member of a consumer group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import wrong_argument
from headrace.sources.brokers.read_ahead_thread import ReadAheadLog
from headrace.sources.brokers.redis_address import SEQUENCE_BITS, RedisAddress, id_at
from headrace.sources.brokers.redis_reader import RedisFetcher
from headrace.sources.journal.receiver import Away
from headrace.sources.log import Positions, Start
from headrace.sources.outage import no_answer

GROUP = "headrace"
"""The consumer group that `commit` sets, so that others see how far reading has come."""


@dataclass(frozen=True)
class RedisStreamSource:
    """A stream of a server."""

    address: RedisAddress

    trim: bool = False
    """Whether `commit` also deletes the entries that are done with, for all readers of the stream."""

    @property
    def place(self) -> str:
        """The URL without user, password and query."""
        return self.address.place

    def open(self) -> RedisStreamLog:
        """Makes the log. Raises `MissingExtraError`; what the server refuses is told by the first question or poll."""
        return RedisStreamLog(self.address, trim=self.trim)


class RedisStreamLog(ReadAheadLog):
    """Reads a stream."""

    def __init__(self, address: RedisAddress, *, trim: bool = False) -> None:
        """trim: whether `commit` also deletes entries."""
        self.identity = {"kind": "Redis stream", "name": address.name}
        self._address = address
        self._trim = trim
        self._client = address.client(0.0)
        super().__init__(RedisFetcher(address), address.place)

    def _ask(self, *command: object) -> Any:
        """Returns the answer to a command. Raises `StorageError`, also if the server is away."""
        try:
            return self._address.asked(lambda: self._client.execute_command(*command))
        except Away as away:
            fix = "see whether the address is right and the server runs"
            raise no_answer("the server does not answer", self._address.place, away, fix) from away

    def resolve(self, start: Start) -> Positions:
        """Returns the position that `start` means now. Raises `StorageError`, `UsageError`."""
        if start == "earliest":
            entries = self._ask("XRANGE", self._address.name, "-", "+", "COUNT", 1)
            if entries:
                return {0: self._address.position_of(entries[0][0])}
            return self.ends()
        if start == "latest":
            return self.ends()
        if isinstance(start, Mapping) and set(start) == {0}:
            return {0: start[0]}
        if isinstance(start, (int, float)) and not isinstance(start, bool):
            return {0: max(int(start * 1000), 0) << SEQUENCE_BITS}
        raise wrong_argument("start", start, '"earliest", "latest", seconds since 1970, or {0: position}')

    def ends(self) -> Positions:
        """Returns the position behind the last entry; 0 while there is no stream. Raises `StorageError`."""
        if not self._ask("EXISTS", self._address.name):
            return {0: 0}
        information = self._ask("XINFO STREAM", self._address.name)
        last = information["last-generated-id"]
        return {0: self._address.position_of(last) + 1 if last != b"0-0" else 0}

    def count(self, starts: Positions, stops: Positions) -> int:
        """Returns about how many entries lie there. Ids are times: as many are taken to have come in each second."""
        if not self._ask("EXISTS", self._address.name):
            return 0

        information = self._ask("XINFO STREAM", self._address.name)
        length: int = information["length"]
        if not length:
            return 0
        first = self._address.position_of(information["first-entry"][0])
        end = self._address.position_of(information["last-generated-id"]) + 1
        share: float = (min(stops[0], end) - max(starts[0], first)) / (end - first)
        return round(length * max(share, 0.0))

    def commit(self, positions: Positions) -> None:
        """Sets the consumer group "headrace" there, which tells others how far reading has come; trims if asked to.

        Raises `StorageError`.
        """
        if 0 not in positions or not self._ask("EXISTS", self._address.name):
            return

        # The last entry that is done with stays: when reading goes on, it shows that nothing was lost behind it.
        last = id_at(max(positions[0] - 1, 0))
        groups = self._ask("XINFO GROUPS", self._address.name)
        if any(group["name"] == GROUP.encode() for group in groups):
            self._ask("XGROUP SETID", self._address.name, GROUP, last)
        else:
            self._ask("XGROUP CREATE", self._address.name, GROUP, last)
        if self._trim:
            self._ask("XTRIM", self._address.name, "MINID", "=", last)

    def close(self) -> None:
        """Ends the connections."""
        super().close()
        self._client.close()
