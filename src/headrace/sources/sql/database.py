"""A database that is read: connections are opened when they are needed, and a query is repeated if one breaks.

Connections belong to the process that opened them. A forked child opens its own, and never touches its parent's: to
close one there would end the parent's session in the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
import time
import weakref
from typing import Any

import pyarrow as pa

from headrace.core.errors import HeadraceError, StorageError
from headrace.core.process import this_process
from headrace.sources.outage import SourceOutage, no_answer
from headrace.sources.sql.answers import QueryResult
from headrace.sources.sql.relation import Relation, SelectedColumn
from headrace.sources.sql.sessions import DatabaseSession
from headrace.sources.sql.targets import Target
from headrace.storage.stores.retries import RetryLimits

LIMITS = RetryLimits(retries=60, seconds=60.0, first_wait=0.1, longest_wait=2.0)
"""For a database that was there once and does not answer: as long as it takes a server to start again."""

AT_ONCE = 3
"""How often a query is tried on new connections that stand, before it is to blame."""

WRONG_QUERIES = ("ProgrammingError", "DataError", "NotSupportedError", "IntegrityError")
"""Errors of PEP 249 that no other connection would help against."""

NO_ANSWER = ("OperationalError", "InterfaceError")
"""Errors of PEP 249 for a server that does not answer."""

_OPENED: weakref.WeakSet[Any] = weakref.WeakSet()


def _keep_for_parent() -> None:
    # In a forked child. One reference more for ever: the child would otherwise close connections of its parent when it
    # drops them, and so tell the server to end the session.
    for session in list(_OPENED):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


this_process.in_forked_child(_keep_for_parent)


class Database:
    """Answers queries, from any thread; each uses a connection of its own. May be pickled, and then opens anew."""

    def __init__(self, target: Target, limits: RetryLimits | None = None) -> None:
        """limits: for how long a server is tried that was there once; None: `LIMITS`."""
        self.target = target
        self._limits = limits
        self.place = target.place
        self.dialect = target.dialect
        self._was_there = False
        self._forget()

    def _forget(self) -> None:
        self._process = this_process.current
        self._idle: list[DatabaseSession] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle, self._process)

    def read(self, query: str, types: pa.Schema | None = None) -> QueryResult:
        """Returns the answer of a query; `DatabaseSession.read` says what `types` is.

        Raises `NoAnswerError` if no connection is to be had for now, else `StorageError`.
        """
        answer: QueryResult = self._with_session(lambda session: session.read(query, types), query)
        return answer

    def columns(self, relation: Relation) -> list[SelectedColumn]:
        """Returns the columns of a relation; see `DatabaseSession.columns`. Raises `StorageError`."""
        found: list[SelectedColumn] = self._with_session(
            lambda session: session.columns(relation), relation.everything()
        )
        return found

    def _with_session(self, act: Any, query: str) -> Any:
        begun = time.monotonic()
        failures = 0
        while True:
            session, is_new = self._take(begun)
            try:
                found = act(session)
            except Exception as error:  # each library has its own, also of Arrow and Python
                _close(session)
                # A connection may have stood idle while the server was started again: that costs no try.
                failures += is_new
                if isinstance(error, HeadraceError):
                    raise
                if type(error).__name__ in WRONG_QUERIES or failures == AT_ONCE or (is_new and not self._was_there):
                    raise self._refused(error, query) from None
                continue

            self._was_there = True
            with self._lock:
                self._idle.append(session)
            return found

    def _take(self, begun: float) -> tuple[DatabaseSession, bool]:
        """Returns a connection, and whether it was opened just now."""
        if self._process is not this_process.current:
            self._forget()

        with self._lock:
            if self._idle:
                return self._idle.pop(), False

        limits = self._limits or LIMITS
        outage = SourceOutage(self.place, f"{limits.seconds:.0f} s are over")
        tries = 0
        while True:
            try:
                session = self.target.open()
                _OPENED.add(session)
                outage.ended()
                return session, True
            except HeadraceError:
                raise
            except Exception as error:  # noqa: BLE001 - each library has its own
                tries += 1
                waited = time.monotonic() - begun
                if not self._was_there or _is_final(error) or tries > limits.retries or waited > limits.seconds:
                    # Whoever asks next is told at once, as long as it stays away.
                    self._was_there = False
                    raise self._not_there(error, tries, waited) from None
                seconds = outage.wait_after(self._shown(error, connecting=True))
            time.sleep(seconds)

    def _not_there(self, error: Exception, tries: int, seconds: float) -> StorageError:
        found = self._shown(error, connecting=True)
        if tries > 1:
            found = f"{found} ({tries} tries in {seconds:.0f} s)"
        what = "cannot connect to the database"
        fix = "see that the server runs, and correct host, port, user, password and the name of the database"
        if not _is_final(error) and (type(error).__name__ in NO_ANSWER or isinstance(error, OSError)):
            return no_answer(what, self.place, found, fix)
        return StorageError.about(what, place=self.place, found=found, fix=fix)

    def _refused(self, error: Exception, query: str) -> StorageError:
        return StorageError.about(
            "the database refused a query",
            place=self.place,
            found=self._shown(error),
            expected=f"an answer to: {_cut(query)}",
            fix="correct query=, table=, key= or columns=; a query must be a SELECT that can follow `from`",
        )

    def _shown(self, error: Exception, connecting: bool = False) -> str:
        """Returns what a library says, without secrets. connecting: also without the user's name."""
        # What SQLAlchemy has wrapped says it shorter.
        said = str(getattr(error, "orig", None) or error).partition("\nQuery was:")[0]
        for word in self.target.secrets.words:
            said = _without(said, word)
        if connecting:
            for user in self.target.secrets.users:
                said = _without(said, user)
        return _cut(said) or type(error).__name__

    def close(self) -> None:
        """Ends the connections that are not in use."""
        if self._process is not this_process.current:
            return
        with self._lock:
            _close_all(self._idle, self._process)

    def __getstate__(self) -> dict[str, Any]:
        # Locks and connections stay in this process.
        return {"target": self.target, "limits": self._limits, "was_there": self._was_there}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["target"], state["limits"])  # type: ignore[misc]
        self._was_there = state["was_there"]

    def __repr__(self) -> str:
        return f"<database {self.place}>"


def _close(session: DatabaseSession) -> None:
    # It may be broken, which each library says in its own way.
    with contextlib.suppress(Exception):
        session.close()


def _close_all(idle: list[DatabaseSession], owner: this_process.Process) -> None:
    """Ends connections, in the process that has opened them."""
    while idle and owner is this_process.current:
        _close(idle.pop())


def _without(said: str, secret: str) -> str:
    """Returns a text without a secret; without a short one where it is a word of its own."""
    if len(secret) > 3:
        return said.replace(secret, "...")
    return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "...", said)


def _is_final(error: Exception) -> bool:
    """Tells whether no further try to connect can succeed: the server was there, and said no."""
    said = str(error)
    if "FATAL" in said:
        return not any(word in said for word in ("starting up", "shutting down", "recovery", "too many", "terminating"))
    return "Access denied" in said or "Unknown database" in said


def _cut(text: str, length: int = 300) -> str:
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    return text[: length - 3] + "..."
