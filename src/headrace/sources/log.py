"""The seam between sources that never end and everything else: a log, which is read by position.

A log has partitions, numbered 0, 1, 2, ... In each, records lie in the order of their positions, which are whole
numbers of 0 to 2**63 - 1 that ascend, with or without gaps. A queue or a socket becomes a log by its journal.

Life of a log: the I/O process opens it, in one thread that is its own, and no other thread touches it. It is told where
to begin with `seek`, asked for records with `poll` again and again, and closed. A second one of the same source may be
open at the same time, to read a stretch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

Positions = dict[int, int]
"""For each partition, the position of the record that comes next."""

Start = str | float | Mapping[int, int]
"""Where a log begins: "earliest", "latest", seconds since 1970 (UTC), or positions by partition."""


@dataclass
class Records:
    """Records of one partition, in the order of their positions. There may be none: then there is a gap."""

    partition: int
    positions: Sequence[int]
    """Of each record, ascending."""
    values: Sequence[bytes] | pa.Table
    """One for each record: what it is in bytes, or a row of columns. A log gives the one or the other, always."""
    following: int
    """The position behind the last record and behind any gap after it: from there the next ones are read."""


class Log(Protocol):
    """Reads a log by position. Errors that pass by themselves (a broker that is away) are waited out inside `poll`."""

    identity: dict[str, str]
    """What tells this log from another one: its "kind", and names and ids such as that of a topic. It goes into states,
    so that it holds no secret. Empty values are not compared."""

    def partitions(self) -> Sequence[int]:
        """Returns the partitions that there are now, ascending."""

    def resolve(self, start: Start) -> Positions:
        """Returns the positions that `start` means now, for all partitions. Raises `UsageError` for what it cannot."""

    def ends(self) -> Positions:
        """Returns the positions behind the last records that there are now."""

    def seek(self, positions: Positions) -> None:
        """Has `poll` go on there, with these partitions only. If there are no such records, `poll` raises.

        A position between two records means the second one: a resume goes on one behind the last position.
        """

    def poll(self, timeout: float, limit: int) -> list[Records]:
        """Returns what comes next, at least one record unless `timeout` seconds pass; about `limit` bytes at most.

        One record that is larger than `limit` is returned all the same. Raises `RecordsLostError` if there are no
        records any more where it is to go on, and `StorageError` if the source refuses (a wrong password, no topic).
        """

    def at_end(self) -> set[int]:
        """Returns the partitions of which all that there was is read, as far as `poll` has seen."""

    def commit(self, positions: Positions) -> None:
        """Tells the source that all before these positions is done with: for its own tools, or to free space.

        Nothing is read differently after that. Raises `StorageError`.
        """

    def close(self) -> None:
        """Ends connections."""


@runtime_checkable
class CountingLog(Protocol):
    """A log whose positions are no count: many of them stand for no record."""

    def count(self, starts: Positions, stops: Positions) -> int:
        """Returns about how many records lie there. Raises `StorageError`."""


def count_records(log: Log, starts: Positions, stops: Positions) -> int:
    """Returns about how many records a log has between positions. Raises `StorageError`."""
    if isinstance(log, CountingLog):
        return log.count(starts, stops)
    return sum(max(stop - starts.get(partition, 0), 0) for partition, stop in stops.items())


class LogSource(Protocol):
    """What is known of a log before it is opened: small, can be pickled, and knows its place without its secrets."""

    @property
    def place(self) -> str:
        """What a user would call it: a URL without user, password and query."""

    def open(self) -> Log:
        """Opens it. Raises `StorageError`, `UsageError`, `MissingExtraError`."""
