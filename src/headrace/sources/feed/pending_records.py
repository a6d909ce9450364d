"""Records that have come of a log and are not part of a span yet."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.sources.feed.span_rule import Sizes
from headrace.sources.log import Positions, Records


class PendingRecords:
    """The records of all partitions, each in the order of its positions. Belongs to one thread."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        """positions: of the next record of each partition."""
        self._parts = {partition: _Part(position) for partition, position in sorted(positions.items())}
        self.count = 0
        self.nbytes = 0

    def add(self, records: Records, end: int | None, now: float = 0.0) -> int:
        """Adds records that have come `now`, those before the position `end`. Returns how many these are."""
        part = self._parts[records.partition]
        part.following = max(part.following, records.following)
        if end is not None and len(records.positions) and records.positions[-1] >= end:
            within = int(np.searchsorted(np.asarray(records.positions, np.int64), end))
            records = _first(records, within)

        count = len(records.positions)
        if count:
            sizes = _sizes(records)
            part.chunks.append(records)
            part.sizes.append(sizes)
            part.came.append(now)
            self.count += count
            self.nbytes += int(sizes.sum())
        return count

    def add_partition(self, partition: int, position: int) -> None:
        """Adds a partition that the log did not have before."""
        self._parts[partition] = _Part(position)
        self._parts = dict(sorted(self._parts.items()))

    def oldest(self) -> float:
        """Returns when the first of the records came that wait; there is one at least."""
        return min(part.came[0] for part in self._parts.values() if part.came)

    def following(self) -> Positions:
        """Returns for each partition the position behind what has come."""
        return {partition: part.following for partition, part in self._parts.items()}

    def starts(self) -> Positions:
        """Returns for each partition where the next span begins."""
        return {partition: part.start for partition, part in self._parts.items()}

    def sizes(self) -> dict[int, Sizes]:
        """Returns what `Closing.cut` wants to know."""
        return {partition: part.summed_sizes() for partition, part in self._parts.items()}

    def before(self, stops: Mapping[int, int]) -> dict[int, int]:
        """Returns how many of the records lie before these positions."""
        counts = {}
        for partition, part in self._parts.items():
            stop = stops.get(partition, 0)
            counts[partition] = sum(int(np.searchsorted(chunk.positions, stop)) for chunk in part.chunks)
        return counts

    def take(self, counts: Mapping[int, int]) -> list[Records]:
        """Takes out the first records of each partition, so many of each."""
        taken = []
        for partition, count in counts.items():
            if count:
                part, nbytes = self._parts[partition].take(partition, count)
                self.count -= count
                self.nbytes -= nbytes
                taken.append(part)

        return taken

    def skip(self, partition: int, position: int) -> None:
        """Goes on at a later position of a partition."""
        part = self._parts[partition]
        part.following = max(part.following, position)
        if not part.chunks:
            part.start = max(part.start, position)


class _Part:
    """The records of one partition."""

    def __init__(self, position: int) -> None:
        self.start = position
        self.following = position
        self.chunks: list[Records] = []
        self.sizes: list[Sizes] = []
        self.came: list[float] = []

    def summed_sizes(self) -> Sizes:
        if not self.sizes:
            return np.empty(0, np.int64)
        return np.cumsum(np.concatenate(self.sizes))

    def take(self, partition: int, count: int) -> tuple[Records, int]:
        """Returns the first `count` records, at least one, and their bytes."""
        chunks = []
        nbytes = 0
        while count:
            chunk = self.chunks[0]
            sizes = self.sizes[0]
            within = min(count, len(sizes))
            count -= within
            nbytes += int(sizes[:within].sum())
            chunks.append(_first(chunk, within))
            if within == len(sizes):
                del self.chunks[0], self.sizes[0], self.came[0]
            else:
                self.chunks[0] = _rest(chunk, within)
                self.sizes[0] = sizes[within:]

        self.start = chunks[-1].positions[-1] + 1
        return _joined(partition, chunks), nbytes


def _sizes(records: Records) -> Sizes:
    if isinstance(records.values, pa.Table):
        count = len(records.positions)
        return np.full(count, max(records.values.nbytes // count, 1), np.int64)
    return np.fromiter(map(len, records.values), np.int64, len(records.values))


def _first(records: Records, count: int) -> Records:
    if isinstance(records.values, pa.Table):
        values = records.values.slice(0, count)
    else:
        values = records.values[:count]
    return Records(records.partition, records.positions[:count], values, records.following)


def _rest(records: Records, count: int) -> Records:
    if isinstance(records.values, pa.Table):
        values = records.values.slice(count)
    else:
        values = records.values[count:]
    return Records(records.partition, records.positions[count:], values, records.following)


def _joined(partition: int, chunks: list[Records]) -> Records:
    positions: list[int] = []
    for chunk in chunks:
        positions += chunk.positions

    following = positions[-1] + 1
    if isinstance(chunks[0].values, pa.Table):
        tables = [chunk.values for chunk in chunks if isinstance(chunk.values, pa.Table)]
        return Records(partition, positions, pa.concat_tables(tables), following)

    values: list[bytes] = []
    for chunk in chunks:
        values += chunk.values
    return Records(partition, positions, values, following)
