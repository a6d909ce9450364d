"""Reads ahead the units of a stream that lie elsewhere: shards, or runs of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.core.process import this_process
from headrace.core.sharding import current_part
from headrace.data.formats.columns import Keys
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.fetcher import PER_RANGE, default_budget
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.fetching.read_plan import Plan


@runtime_checkable
class RemoteReader(Protocol):
    """A reader of data that may lie elsewhere."""

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        """Returns the ranges that `fetch` of these samples and columns will read; none for data on this machine."""


@runtime_checkable
class RemoteShards(Protocol):
    """A reader of shards that may lie elsewhere."""

    def shard_ranges(self, number: int, names: Sequence[str]) -> list[ByteRange]:
        """Returns the ranges that reading a whole shard will read; none for data on this machine."""


class StreamAhead:
    """Announces units in the order in which a stream comes to them."""

    def __init__(self, reader: Any, names: Sequence[str], units: Sequence[Any]) -> None:
        """units: in the order in which they are read, each a range of samples or the number of a shard."""
        self._reader = reader
        self._names = names
        self._units = units
        self._plan = Plan(endpoint())
        self._next = 0
        self._sizes: dict[int, int] = {}
        self._limit = default_budget() // max(current_part().parts, 1)

    def reached(self, position: int) -> None:
        """Says that the unit at a position is read now, and announces those behind it, up to a number of bytes."""
        if self._plan.process is not this_process.current:
            self._plan = Plan(endpoint())

        for behind in [at for at in self._sizes if at < position]:
            del self._sizes[behind]
            self._plan.passed(behind)

        self._next = max(self._next, position)
        self._announce()
        self._plan.tell()

    def _announce(self) -> None:
        while self._next < len(self._units) and (sum(self._sizes.values()) < self._limit):
            ranges = self._ranges(self._units[self._next])
            self._sizes[self._next] = sum(wanted.size + PER_RANGE for wanted in ranges)
            self._plan.announce(self._next, ranges)
            self._next += 1
            # A shard whose index is not known may be all that there is room for.
            if not ranges:
                return

    def _ranges(self, unit: Any) -> list[ByteRange]:
        try:
            if isinstance(unit, range):
                ranges: list[ByteRange] = self._reader.byte_ranges(np.arange(unit.start, unit.stop), self._names)
                return ranges
            if isinstance(self._reader, RemoteShards):
                return self._reader.shard_ranges(unit, self._names)
        except HeadraceError:
            # Whoever reads the unit says so.
            pass
        return []
