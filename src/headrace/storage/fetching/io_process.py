"""The I/O process: fetches byte ranges for a loader and its workers, so that no worker needs a client of its own.

It is started as a program of its own, never forked: clients of object stores run threads, which a fork leaves behind.
It listens on a socket that its parent has opened, and ends when its parent does or says so.

What it is sent, each a tuple whose first part says what it is:

    ("store", store)                    a store that ranges name
    ("drop store", name)                nobody reads from it any more
    ("read", ranges)                    is answered by ("data", sizes) and the bytes, or by ("error", exception)
    ("announce", plan, coming), ("passed", plan, position), ("forget", plan)
    ("read directly", count)            so many bytes came out of the cache, without this process
    ("counts",)                         is answered by `RemoteReads`
    ("service", module)                 has the function `serve` of that module answer from then on
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from headrace.core import framing
from headrace.storage.fetching.fetcher import RangeFetcher
from headrace.storage.fetching.range_sources import bring
from headrace.storage.stores import registry
from headrace.storage.stores.registry import RegisteredStore


class _Connection:
    """Serves a thread of some process. The plans that were announced through it go with it."""

    def __init__(self, connection: socket.socket, fetcher: RangeFetcher, cpu_before: float) -> None:
        """cpu_before: core seconds that this process took to start, which are no fetching."""
        self._connection = connection
        self._fetcher = fetcher
        self._cpu_before = cpu_before
        self._plans: set[int] = set()
        # They are known in this process as long as a connection holds them.
        self._stores: dict[str, RegisteredStore] = {}

    def serve(self) -> None:
        """Answers until the other end is gone."""
        try:
            with self._connection:
                while True:
                    message = framing.receive(self._connection)
                    if message[0] == "service":
                        importlib.import_module(message[1]).serve(self._connection)
                    self._answer(message)
        except (EOFError, OSError):
            return
        finally:
            for plan in self._plans:
                self._fetcher.abandon(plan)

    def _answer(self, message: tuple[Any, ...]) -> None:
        what, *rest = message
        if what == "read":
            self._read(*rest)
        elif what == "announce":
            plan, coming = rest
            self._plans.add(plan)
            self._fetcher.announce(plan, coming)
        elif what == "passed":
            plan, position = rest
            self._fetcher.passed(plan, position)
        elif what == "forget":
            self._plans.discard(rest[0])
            self._fetcher.abandon(rest[0])
        elif what == "read directly":
            self._fetcher.read_directly(rest[0])
        elif what == "store":
            store: RegisteredStore = rest[0]
            self._stores[store.name] = store
        elif what == "drop store":
            del self._stores[rest[0]]
        elif what == "counts":
            framing.send(self._connection, replace(self._fetcher.count(), cpu=time.process_time() - self._cpu_before))

    def _read(self, ranges: Any) -> None:
        try:
            data = self._fetcher.read(ranges)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            framing.send(self._connection, ("error", framing.picklable(error)))
            return

        framing.send(self._connection, ("data", [len(part) for part in data]), data)


def _end_with_parent(parent: int, folder: str) -> None:
    """Waits until the parent says so, or ends, however; then ends this process.

    The end of stdin alone does not tell: a child that the parent has forked holds the other end of the pipe, too.
    """
    ended = select.poll()
    ended.register(sys.stdin.fileno(), select.POLLIN)
    with contextlib.suppress(OSError, AttributeError):
        # Other systems than Linux have none, and there the pipe must do.
        ended.register(os.pidfd_open(parent), select.POLLIN)
    while os.getppid() == parent and not ended.poll():
        pass

    # A parent that was killed could not remove it. The other one removes it, too.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    """Serves on the listening socket whose descriptor is the first argument.

    The second one is the parent's number, the third one the folder of the socket.
    """
    # Ctrl-C reaches the parent too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(int(sys.argv[2]), sys.argv[3]), daemon=True).start()
    fetcher = RangeFetcher(bring)
    registry.on_retry(fetcher.retried)
    cpu_before = time.process_time()
    for number in itertools.count():
        connection, _ = listener.accept()
        serving = _Connection(connection, fetcher, cpu_before)
        threading.Thread(target=serving.serve, name=f"headrace-serve-{number}", daemon=True).start()


if __name__ == "__main__":
    main()
