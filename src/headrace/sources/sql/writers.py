"""Transactions of PostgreSQL that may still bring rows with smaller keys than those that are there.

A transaction locks a table for writing before its first insert draws a key, and until it ends. Whoever looks for a row
first, and then for the locks, finds each transaction that may have drawn a smaller key, or sees its rows in the next
query. A standby does not know these locks: there transactions are told by their numbers, which they may get a moment
after the key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from headrace.core.errors import UsageError
from headrace.sources.sql.database import Database
from headrace.sources.sql.relation import Relation

WRITING = ("RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
"""Locks that a transaction holds which inserts."""

FIRST_OF_USERS = 16384
"""Relations with smaller numbers are PostgreSQL's own."""

PREPARED = "-1/"
"""How transactions of two-phase commits are called, from the moment on when they are prepared."""


class Writers(NamedTuple):
    """What told of transactions at one moment."""

    holders: frozenset[str] = frozenset()
    """Those that held a lock for writing, by names that are used once."""
    next: int = 0
    """On a standby: the number of the first transaction that had not begun to write."""
    oldest: int = 0
    """On a standby: of the first one that had not ended."""

    def have_ended(self, now: Writers) -> bool:
        """Tells whether all of these transactions have ended by `now`."""
        return not self.still_there(now)

    def still_there(self, now: Writers) -> str:
        """Returns how to call those of these transactions that have not ended; "": all have."""
        left = self.holders & now.holders
        if self.holders:
            # One that is prepared meanwhile goes by another name than before.
            left |= {name for name in now.holders - self.holders if name.startswith(PREPARED)}
        if left:
            return f"the transactions {', '.join(sorted(left))} (virtualtransaction in pg_locks)"
        if now.oldest < self.next:
            return f"transactions below {self.next} (backend_xid)"
        return ""


class WritersOf:
    """Asks for the transactions that write to a relation: a table with its partitions, or all tables of a query."""

    def __init__(self, database: Database, relation: Relation, table: str | None) -> None:
        """Raises `UsageError` for a database that is not PostgreSQL itself: others show no locks, or none of all."""
        self._database = database
        version = str(self._ask("version()", pa.string()))
        if not version.startswith("PostgreSQL") or "Redshift" in version or "-YB-" in version:
            raise UsageError.about(
                "this database does not tell which transactions write",
                place=database.place,
                found=version[:80],
                expected="PostgreSQL",
                fix="give settle=, with more seconds than a transaction takes from its insert to its commit",
            )

        self.on_standby = self._ask("pg_is_in_recovery()", pa.bool_())
        locked = f"l.relation >= {FIRST_OF_USERS}"
        if table is not None:
            name = f"{database.dialect.text(relation.source)}::regclass"
            # Children of a table that is no partitioned one are not in its tree.
            alone = f"relkind = 'r' and not exists (select from pg_inherits where inhparent = {name})"
            if self._ask(f"(select relkind = 'p' or {alone} from pg_class where oid = {name})", pa.bool_()):
                locked = f"l.relation in (select {name} union all select relid from pg_partition_tree({name}))"

        modes = ", ".join(f"'{mode}'" for mode in WRITING)
        self._locks = (
            "select coalesce(string_agg(distinct l.virtualtransaction, ' '), '') as names from pg_locks l "
            "where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid() "
            "and l.database = (select oid from pg_database where datname = current_database()) "
            f"and l.mode in ({modes}) and {locked}"
        )

    def now(self) -> Writers:
        """Returns the transactions that write at this moment. Raises `StorageError` if the database refuses."""
        if self.on_standby:
            return Writers(
                next=int(self._ask("pg_snapshot_xmax(pg_current_snapshot())::text", pa.string())),
                oldest=int(self._ask("pg_snapshot_xmin(pg_current_snapshot())::text", pa.string())),
            )
        names = self._database.read(self._locks, pa.schema([("names", pa.string())])).table.column(0)[0].as_py()
        return Writers(frozenset(names.split()))

    def _ask(self, expression: str, kind: pa.DataType) -> Any:
        answer = self._database.read(f"select {expression} as found", pa.schema([("found", kind)]))
        return answer.table.column(0)[0].as_py()
