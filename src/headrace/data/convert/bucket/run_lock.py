"""Keeps two packs away from one target in a store.

Stores have no locks. So each run writes an object of its own beside the target, and then lists them: if there is one of
another run, it takes its own away and gives up. Of two that begin at once, at least one sees the other, since listings
show what was written before; perhaps both give up, but never do both go on.

A run that was killed leaves its object. It counts as gone if it is of this machine, whose lock file this process holds
by now, or if nobody has renewed it for `STALE` seconds, by the clock of the store.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from types import TracebackType

from headrace.core.errors import DatasetError, ObjectNotFoundError, StorageError
from headrace.storage.locations import Location
from headrace.storage.stores.objects import ObjectInfo, Store

RENEW = 20.0
"""Seconds between two renewals."""

STALE = 90.0
"""Seconds without a renewal after which a run counts as gone."""

PREFIX = "run-"


class RunLock:
    """The object of a run. Used as a context, in one thread; another thread renews it meanwhile."""

    def __init__(self, store: Store, area: str, machine: str) -> None:
        """area: the folder of the objects. machine: a text that only runs from this machine's lock file know."""
        self._store = store
        self._area = area
        self._machine = machine
        self._key = f"{area}/{PREFIX}{secrets.token_hex(8)}"
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="headrace-pack-lock", daemon=True)

    def __enter__(self) -> RunLock:
        """Raises `DatasetError` if another run writes the target, and `StorageError` if this one may not."""
        self._write()
        try:
            self._refuse_others()
        except BaseException:
            self._store.delete(self._key)
            raise

        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._renewal.join()
        try:
            self._store.delete(self._key)
        except StorageError:
            # It goes stale by itself; what ended the block is what matters.
            if error is None:
                raise

    def check(self) -> None:
        """Raises `DatasetError` if another run has taken the target over, since this one could not renew its lock."""
        others = self._others()
        try:
            self._store.head(self._key)
        except ObjectNotFoundError:
            cure = "run the same command again when the other one has ended"
            what = "another pack has taken this target over"
            raise DatasetError.about(what, place=self._url(), found="no lock of this run", cure=cure) from None

        if others:
            self._raise_busy(others[0], "its lock")

    def _refuse_others(self) -> None:
        others = self._others()
        if not others:
            return

        now = self._store.head(self._key).modified
        for other in others:
            if self._is_of_this_machine(other.key):
                self._store.delete(other.key)
                continue

            age = None
            if now is not None and other.modified is not None:
                age = now - other.modified
            if age is not None and age > STALE:
                self._store.delete(other.key)
                continue

            found = "its lock"
            if age is not None:
                found = f"its lock, renewed {max(age, 0.0):.0f} s ago"
            self._raise_busy(other, found)

    def _raise_busy(self, other: ObjectInfo, found: str) -> None:
        place = Location(self._store.location.scheme, self._store.location.container, other.key).url
        cure = f"wait until it has ended, or choose another target; one that was killed is forgotten in {STALE:.0f} s"
        raise DatasetError.about("another pack is writing this target", place=place, found=found, cure=cure)

    def _others(self) -> list[ObjectInfo]:
        found = []
        for info in self._store.list_folder(self._area)[1]:
            name = info.key.rpartition("/")[2]
            if name.startswith(PREFIX) and info.key != self._key:
                found.append(info)

        return found

    def _is_of_this_machine(self, key: str) -> bool:
        try:
            data = bytes(self._store.read_whole(key)[0])
            return bool(json.loads(data)["machine"] == self._machine)
        except (ObjectNotFoundError, ValueError, KeyError, TypeError):
            return False

    def _write(self) -> None:
        text = json.dumps({"machine": self._machine, "host": socket.gethostname()})
        self._store.write(self._key, [text.encode()])

    def _renew(self) -> None:
        while not self._ended.wait(RENEW):
            try:
                self._write()
            except StorageError:
                # Asked again later. If this goes on, the lock goes stale, and `check` says who has taken over.
                continue

    def _url(self) -> str:
        return Location(self._store.location.scheme, self._store.location.container, self._key).url
