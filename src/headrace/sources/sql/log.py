"""A table that grows, as a log: positions are the values of a key that ascends, such as an identity column.

Rows must not be taken before those with smaller keys can come no more. A transaction draws its key when it inserts, and
others see the row when it commits, so that key 8 may appear after key 9. There are two ways to wait for it:

PostgreSQL  A row is taken once all transactions have ended that wrote to the table when it was first seen. The insert
            itself must draw the key, from a sequence without CACHE; where keys are drawn before, give `settle`, too.
settle      Everywhere else, and where it is asked for: a row is taken once a row with its key or a larger one has been
            seen for so many seconds. Transactions that take longer between their insert and their commit lose rows.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.core.errors import FormatError, UsageError, wrong_argument
from headrace.sources.log import Positions, Records, Start
from headrace.sources.outage import NoAnswerError, SourceOutage
from headrace.sources.sql.database import Database
from headrace.sources.sql.key_index import keyed
from headrace.sources.sql.relation import KEY_NAME, Relation, SelectedColumn, selected
from headrace.sources.sql.targets import Target, target_of
from headrace.sources.sql.writers import Writers, WritersOf
from headrace.storage.stores.retries import RetryLimits

LOGGER = logging.getLogger("headrace")

SETTLE = 2.0
"""Seconds, where neither `settle` nor `xid` is given."""

FIRST = 256
"""Rows of the first page; after that as many as `limit` has room for."""

MOST = 1 << 17
"""Rows of a page, at most."""

MOST_SEEN = 1000
"""Moments of which is known who wrote to the table then. Further ones take the place of the last one."""

LONG = 60.0
"""Seconds after which the log says for whom rows wait."""

PAUSE = 0.2
"""Seconds between two looks at a table in which nothing is new, at most."""

ONE_TRY = RetryLimits(retries=0, seconds=0.0)
"""A server that is away is tried again by the next look."""

PLACE = "headrace.follow"


class SQLSource:
    """A table or query that grows. Small, can be pickled, and shows no secret."""

    def __init__(
        self,
        source: Any,
        *,
        query: str | None = None,
        table: str | None = None,
        key: str | None = None,
        columns: Iterable[str] | None = None,
        settle: float | None = None,
        xid: str | None = None,
    ) -> None:
        """source: a URL, an engine of SQLAlchemy, or a function that returns a connection of DB-API 2.

        query, table, key, columns: as in `headrace.follow`; the key holds whole numbers, 0 or more. settle: see above.
        xid: a column of PostgreSQL that is no part of samples; rows wait for transactions also if `settle` is given.
        Raises `UsageError`; what the database has to say comes with `open`.
        """
        if settle is not None and (isinstance(settle, bool) or not isinstance(settle, (int, float)) or settle < 0):
            raise wrong_argument("settle", settle, "seconds, 0 or more", place=PLACE)

        self._target: Target = target_of(source)
        self._relation = Relation.of(self._target.dialect, query, table)
        self._table = table
        if xid is not None and self._target.dialect.name != "postgresql":
            fix = "leave it out, and give settle="
            raise wrong_argument("xid", xid, "a column of PostgreSQL", place=PLACE, fix=fix)

        self._key = key
        self._columns = None if columns is None else tuple(columns)
        self._xid = xid
        self._waits = xid is not None or (settle is None and self._target.dialect.name == "postgresql")
        self._settle = settle
        if settle is None:
            self._settle = 0.0 if self._waits else SETTLE
        self.place = self._target.place

    def open(self) -> SQLLog:
        """Connects. Raises `StorageError`, `UsageError`, `FormatError` and `MissingExtraError`."""
        database = Database(self._target, ONE_TRY)
        columns = database.columns(self._relation)
        relation = keyed(database, self._relation, columns, self._key)
        if not relation.has_numbers:
            expected = "whole numbers that ascend, such as an identity column or bigserial"
            where = f"{self.place}, column {self._key!r}"
            raise UsageError.about("this key cannot be the position in a log", place=where, expected=expected)

        names = [column.name for column in columns]
        if self._xid is not None and self._xid not in names:
            expected = "one of " + ", ".join(names)
            what = "there is no such column for xid="
            raise UsageError.about(what, place=self.place, found=repr(self._xid), expected=expected)

        # What orders transactions is no part of a sample, unless somebody asks for it.
        wanted = self._columns or tuple(name for name in names if name != self._xid)
        chosen = selected(columns, wanted, self.place)
        settle = float(self._settle or 0.0)
        writers = None
        if self._waits:
            writers = WritersOf(database, relation, self._table)
            if writers.on_standby and not settle:
                settle = SETTLE
        return SQLLog(database, relation, chosen, writers, settle)

    def __repr__(self) -> str:
        return f"<growing table {self.place}, by {self._key}>"


class LargestKey(NamedTuple):
    """The largest key of a moment."""

    key: int
    since: float
    """By the monotonic clock."""
    writers: Writers
    """The transactions that may bring rows with smaller keys."""


class SQLLog:
    """Reads a growing table, page by page. Deleted rows are gaps. See `Log`."""

    def __init__(
        self,
        database: Database,
        relation: Relation,
        columns: Sequence[SelectedColumn],
        writers: WritersOf | None,
        settle: float,
    ) -> None:
        """columns: what the records hold, in their order. writers: those to wait for; None: for nobody."""
        self._database = database
        self._outage = SourceOutage(database.place)
        self._look_again = 0.0
        self._relation = relation
        self._columns = list(columns)
        self._settle = settle
        self._writers = writers
        text = f"{relation.source}\n{relation.order}"
        self.identity = {"kind": "table", "query": hashlib.sha256(text.encode()).hexdigest()[:16]}
        self._seen: deque[LargestKey] = deque()  # what is not complete yet, at most
        self._newest = -1
        self._complete = -1
        self._has_said_who = False
        self._position = 0
        self._row_bytes = 0.0
        self._is_at_end = False
        least = self._edge("min")
        if least is not None and least < 0:
            fix = "leave such rows out in query=, or add a number to the key there"
            where = database.place
            if relation.key is not None:
                where = f"{database.place}, column {relation.key.name!r}"
            raise FormatError.about("positions are 0 or more", place=where, found=f"the key {least}", fix=fix)

    def partitions(self) -> list[int]:
        """See `Log.partitions`: there is one, 0."""
        return [0]

    def resolve(self, start: Start) -> Positions:
        """See `Log.resolve`: "earliest", "latest", or {0: key}."""
        if start == "earliest":
            return {0: 0}
        if start == "latest":
            return self.ends()
        if isinstance(start, Mapping) and list(start) == [0] and isinstance(start[0], int) and start[0] >= 0:
            return {0: start[0]}

        fix = "give a key, as in {0: 1000}; a query can find the first one of a time"
        raise wrong_argument("start", start, '"earliest", "latest", or {0: key}', place=PLACE, fix=fix)

    def ends(self) -> Positions:
        """See `Log.ends`: rows that must not be taken yet count."""
        last = self._edge("max")
        return {0: 0 if last is None else last + 1}

    def _edge(self, function: str) -> int | None:
        asked = f"select {function}({self._relation.order}) as {KEY_NAME} from {self._relation.source} q"
        answer = self._database.read(asked, pa.schema([(KEY_NAME, pa.int64())]))
        found = answer.table.column(0)[0].as_py()
        return None if found is None else int(found)

    def seek(self, positions: Positions) -> None:
        if list(positions) != [0]:
            raise wrong_argument("positions", positions, "{0: key}, as a table is one partition", place="seek")
        self._position = positions[0]
        self._is_at_end = False

    def poll(self, timeout: float, limit: int) -> list[Records]:
        """See `Log.poll`: values are a table. Raises `StorageError` if the database refuses."""
        deadline = time.monotonic() + timeout
        while True:
            # A server that is away is left alone for a while, over several calls.
            if time.monotonic() >= self._look_again:
                records = self._look(limit)
                if records is not None:
                    return [records]

            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(PAUSE, left))

    def _look(self, limit: int) -> Records | None:
        """Returns what may be taken now. Waits for a server that does not answer."""
        try:
            with self._outage.noticed():
                records = self._next(limit)
        except NoAnswerError as away:
            self._look_again = time.monotonic() + self._outage.wait_after(away.said)
            return None

        self._outage.ended()
        return records

    def _next(self, limit: int) -> Records | None:
        bound = self._bound()
        if bound is None or bound >= self._position:
            return self._page(bound, limit)
        self._is_at_end = self._newest < self._position
        return None

    def _bound(self) -> int | None:
        """Returns the last key that may be taken; None: any that is there."""
        if not self._settle and self._writers is None:
            return None

        newest = self._edge("max")
        # In this order: whoever has drawn a smaller key, and whose row is not seen by the last query, is a writer now.
        writers = Writers()
        if self._writers is not None:
            writers = self._writers.now()

        now = time.monotonic()
        if newest is not None and newest > self._newest:
            self._newest = newest
            if len(self._seen) == MOST_SEEN:
                self._seen.pop()
            self._seen.append(LargestKey(newest, now, writers))
        # What was complete once remains so, whoever writes later.
        while self._seen and self._is_complete(self._seen[0], now, writers):
            self._complete = self._seen.popleft().key
            self._has_said_who = False
        self._say_who(now, writers)
        return self._complete

    def _say_who(self, now: float, writers: Writers) -> None:
        """Says in the log for which transactions rows wait, if they do so for long."""
        if self._has_said_who or not self._seen or self._seen[0].since > now - LONG - self._settle:
            return
        self._has_said_who = True
        LOGGER.warning(
            "headrace: %s: new rows wait for %s, open for more than %.0f s. The view pg_stat_activity shows who it is; "
            "settle= gives the seconds that rows wait at most.",
            self._database.place, self._seen[0].writers.still_there(writers), LONG,
        )  # fmt: skip

    def _is_complete(self, seen: LargestKey, now: float, writers: Writers) -> bool:
        """Tells whether no row can come any more with a smaller key."""
        return seen.since <= now - self._settle and seen.writers.have_ended(writers)

    def _page(self, bound: int | None, limit: int) -> Records | None:
        rows = FIRST
        if self._row_bytes:
            rows = min(max(int(limit / self._row_bytes), 1), MOST)

        conditions = [f"{self._relation.order} >= {self._position}"]
        if bound is not None:
            conditions.append(f"{self._relation.order} <= {bound}")

        query = self._relation.select(self._columns, " and ".join(conditions), rows)
        asked = self._relation.asked(self._columns)
        types = pa.schema([(column.name, column.type) for column in asked])
        table = self._database.read(query, types).table
        self._is_at_end = table.num_rows < rows and (bound is None or bound == self._newest)
        if not table.num_rows:
            return None

        self._row_bytes = table.nbytes / table.num_rows
        if table.nbytes > limit:
            self._is_at_end = False
            table = table.slice(0, max(int(table.num_rows * limit / table.nbytes), 1))

        positions = table.column(0).cast(pa.int64()).to_numpy()
        self._position = int(positions[-1]) + 1
        # Without what drivers add to the schema, which may differ from page to page.
        chosen = pa.table({column.name: table.column(column.name) for column in self._columns})
        return Records(0, positions.tolist(), chosen, self._position)

    def at_end(self) -> set[int]:
        return {0} if self._is_at_end else set()

    def commit(self, positions: Positions) -> None:
        """See `Log.commit`: a table needs none."""

    def close(self) -> None:
        self._database.close()
