"""Servers that are taken away and come back: they stand still, or are ended and started again with their data."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from headrace.core.process.memory import process_tree
from tests.sources.every_source import KINDS, Source, kafka

WAYS = ("stopped", "ended")

FIXTURES = {name: kind.server for name, kind in KINDS.items() if kind.server is not None}
"""The server of each kind of source, as a fixture."""

# With one partition, records lie in the same order in every run, also while they come.
DURABLE: dict[str, Callable[[pytest.FixtureRequest, str], contextlib.AbstractContextManager[Source]]] = {
    **{name: KINDS[name].make for name in FIXTURES},
    "kafka": functools.partial(kafka, partitions=1, fixture="durable_kafka"),
}
"""The sources whose servers keep their data when they are killed."""


class Server(Protocol):
    """A server that can be killed and started again, with what it had."""

    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Ends it at once."""

    def start(self) -> None:
        """Starts it, and waits until it answers."""


@contextlib.contextmanager
def away(server: Server, way: str) -> Iterator[None]:
    """Has a server be away until the block ends: it stands still ("stopped") or is gone ("ended")."""
    if way == "ended":
        server.kill()
        yield
        server.start()
        return

    # All of it: PostgreSQL has a process for each connection.
    stopped = process_tree(server.process.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
