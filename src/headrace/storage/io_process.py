"""The I/O process: fetches byte ranges for a loader and its workers, so that no worker needs a client of its own.

It is started as a program of its own, never forked: clients of object stores run threads, which a fork leaves behind.
It listens on a socket that its parent has opened, and ends when its parent does.

What it is sent, each a tuple whose first part says what it is:

    ("store", settings)                 a store that ranges name
    ("read", ranges)                    is answered by ("data", sizes) and the bytes, or by ("error", exception)
    ("announce", plan, position, ranges, next_uses), ("passed", plan, position), ("forget", plan)
    ("read directly", count)            so many bytes came out of the cache, without this process
    ("counts",)                         is answered by `RemoteReads`
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from headrace.core.errors import StorageError
from headrace.storage import stores, wire
from headrace.storage.fetcher import Fetcher
from headrace.storage.sources import bring
from headrace.storage.stores import StoreSettings


class _Connection:
    """Serves one process. Its plans go with it."""

    def __init__(self, connection: socket.socket, fetcher: Fetcher, number: int, cpu_before: float) -> None:
        """cpu_before: core seconds that this process took to start, which are no fetching."""
        self._connection = connection
        self._fetcher = fetcher
        self._cpu_before = cpu_before
        # Plans of different processes have the same numbers.
        self._first_plan = number << 32
        self._plans: set[int] = set()

    def serve(self) -> None:
        """Answers until the other end is gone."""
        with self._connection:
            try:
                while True:
                    self._answer(wire.receive(self._connection))
            except (EOFError, OSError):
                for plan in self._plans:
                    self._fetcher.abandon(plan)

    def _answer(self, message: tuple[Any, ...]) -> None:
        what, *rest = message
        if what == "read":
            self._read(*rest)
        elif what == "announce":
            plan, position, ranges, next_uses = rest
            self._plans.add(self._first_plan + plan)
            self._fetcher.announce(self._first_plan + plan, position, ranges, next_uses)
        elif what == "passed":
            plan, position = rest
            self._fetcher.passed(self._first_plan + plan, position)
        elif what == "forget":
            self._plans.discard(self._first_plan + rest[0])
            self._fetcher.abandon(self._first_plan + rest[0])
        elif what == "read directly":
            self._fetcher.read_directly(rest[0])
        elif what == "store":
            settings: StoreSettings = rest[0]
            stores.register(settings)
        elif what == "counts":
            wire.send(self._connection, replace(self._fetcher.count(), cpu=time.process_time() - self._cpu_before))

    def _read(self, ranges: Any) -> None:
        try:
            data = self._fetcher.read(ranges)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            wire.send(self._connection, ("error", _picklable(error)))
            return

        wire.send(self._connection, ("data", [len(part) for part in data]), data)


def _picklable(error: Exception) -> Exception:
    """Returns an error as it is, or one that says the same and can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return StorageError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """Waits until the parent closes its end of stdin, which happens when it ends, too; then ends this process."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serves on the listening socket whose descriptor is the first argument."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    fetcher = Fetcher(bring)
    stores.on_retry(fetcher.retried)
    cpu_before = time.process_time()
    for number in itertools.count():
        connection, _ = listener.accept()
        serving = _Connection(connection, fetcher, number, cpu_before)
        threading.Thread(target=serving.serve, name=f"headrace-serve-{number}", daemon=True).start()


if __name__ == "__main__":
    main()
