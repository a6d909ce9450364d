"""Where a span ends: how many of the records that have come go into it. Pure numbers.

The answer depends on what lies in the log, not on what came first over the network: each partition gives equally many
records, as far as it has them. So a log that does not change is cut into the same spans in every run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]
"""Of the records of one partition: the bytes of the first, of the first two, and so on; int64 [records]."""

FORCED = 2
"""How many times the bytes of a span may come before it is closed with what is there: one partition may be far ahead
of another that gives nothing."""

SOON = 0.5
"""Seconds for which the first span of an epoch lingers where it may be closed soon."""

ENOUGH = 100
"""Records with which it may: by so many it is told what samples look like."""


@dataclass(frozen=True)
class Closing:
    """When a span is closed: at so many samples or bytes, or so many seconds behind its first record."""

    samples: int
    linger: float
    nbytes: int

    def of_first(self, count: int, *, at_end: bool) -> Closing:
        """Returns when the first span of an epoch is closed, for which the first batch waits: soon, if that is enough.

        count: how many records have come. at_end: whether these are all that the log has for now. Otherwise the time
        in which they come would say where the span ends.
        """
        if not at_end or count < ENOUGH:
            return self
        return replace(self, linger=min(self.linger, SOON))

    def cut(self, coming: Mapping[int, Sizes], at_end: Collection[int], waited: float) -> dict[int, int] | None:
        """Returns how many records of each partition make the span; None: it stays open.

        coming: what has come of each partition. at_end: the partitions of which there is no more for now. waited:
        seconds since the first of these records came.
        """
        counts = {partition: len(coming[partition]) for partition in sorted(coming)}
        if not any(counts.values()):
            return None

        everything = dict.fromkeys(counts, max(counts.values()))
        is_late = waited >= self.linger or _bytes_of(coming, everything) >= FORCED * self.nbytes
        if is_late:
            at_end = counts.keys()

        # Up to this level it is known of each partition whether it has so many records.
        known = min((count for partition, count in counts.items() if partition not in at_end), default=None)
        if known is None:
            known = max(counts.values())

        level = self._level(coming, known)
        taken = {partition: min(count, level) for partition, count in counts.items()}
        if sum(taken.values()) >= self.samples:
            return taken

        # One more of each, in order, until it is full.
        for partition, count in counts.items():
            if count > level:
                if not self._fits(coming, {**taken, partition: level + 1}) and any(taken.values()):
                    return taken
                taken[partition] += 1
            elif partition not in at_end:
                return None

        if is_late or not self._fits(coming, taken):
            return taken
        return None

    def _level(self, coming: Mapping[int, Sizes], known: int) -> int:
        """Returns how many records each partition gives, as far as it has them, without more than fit."""
        low = 0
        high = known
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(coming, dict.fromkeys(coming, middle)):
                low = middle
            else:
                high = middle - 1

        return low

    def _fits(self, coming: Mapping[int, Sizes], wanted: Mapping[int, int]) -> bool:
        count = sum(min(wanted[partition], len(sizes)) for partition, sizes in coming.items())
        return count <= self.samples and _bytes_of(coming, wanted) <= self.nbytes


def _bytes_of(coming: Mapping[int, Sizes], wanted: Mapping[int, int]) -> int:
    """Returns the bytes of so many records of each partition, or of as many as have come."""
    total = 0
    for partition, sizes in coming.items():
        count = min(wanted[partition], len(sizes))
        if count:
            total += int(sizes[count - 1])

    return total
