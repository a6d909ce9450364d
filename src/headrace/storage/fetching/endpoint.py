"""What reads byte ranges for this process: a fetcher of its own, or the I/O process of the loader.

Clients of object stores run threads, which a fork leaves behind: a forked child that used its parent's client would
wait for ever. So a process uses only what it has made itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from headrace.core.errors import StorageError
from headrace.core.process import this_process
from headrace.core.process.this_process import ForkLock, Process
from headrace.storage.fetching.fetcher import RangeFetcher
from headrace.storage.fetching.range_sources import bring
from headrace.storage.fetching.ranges import ByteRange, PlannedRead
from headrace.storage.stores import registry
from headrace.telemetry.remote_reads import RemoteReads


class Endpoint(Protocol):
    """Reads ranges of objects whose stores are registered in this process. Any thread may call it."""

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of ranges, which nobody changes. Raises `StorageError`."""

    def read_into(self, ranges: Sequence[ByteRange], out: memoryview) -> None:
        """Reads ranges, one behind the other, into a buffer that is as long as they are. Raises `StorageError`."""

    def announce(self, plan: int, coming: Sequence[PlannedRead]) -> None:
        """Says what will be read at positions of a plan, which come in order.

        What is announced in one call may come in the same request, as far as it lies side by side.
        """

    def passed(self, plan: int, position: int) -> None:
        """Says that a plan is behind a position."""

    def abandon(self, plan: int) -> None:
        """Drops a plan, and what was fetched for it alone, as soon as that can be done.

        A finalizer may call it at any moment, also while the same thread is inside another method.
        """

    def read_directly(self, count: int) -> None:
        """Says that this process has taken so many bytes out of the cache itself."""

    def count(self) -> RemoteReads:
        """Returns what was read so far."""


_LOCK = ForkLock()
_OWNER: Process | None = None
"""The process whose endpoint it is."""
_ENDPOINT: Endpoint | None = None
_PROCESS: object = None
"""The I/O process that this process has started for itself, which ends when nobody holds it."""


def endpoint() -> Endpoint:
    """Returns what reads for this process."""
    global _OWNER, _ENDPOINT
    if _ENDPOINT is not None and _OWNER is this_process.current:
        return _ENDPOINT

    with _LOCK.here:
        if _ENDPOINT is None or _OWNER is not this_process.current:
            _ENDPOINT = _new_endpoint()
            _OWNER = this_process.current
        return _ENDPOINT


def tell_of_direct_reads(count: int) -> None:
    """Tells what reads for this process, if there is such, that so many bytes came out of the cache without it."""
    if _ENDPOINT is not None and _OWNER is this_process.current:
        # Without the I/O process, what is in the cache can be read all the same: only figures lack it.
        with contextlib.suppress(StorageError):
            _ENDPOINT.read_directly(count)


def _new_endpoint() -> Endpoint:
    global _PROCESS
    if _OWNER is None and registry.opened_by() in (None, this_process.current):
        fetcher = RangeFetcher(bring)
        registry.on_retry(fetcher.retried)
        return fetcher

    # A process that was forked by somebody else, such as a worker of torch's own loader, from one that has read.
    from headrace.storage.fetching.io_client import IO_PROCESS

    _PROCESS = IO_PROCESS.get()
    return _PROCESS.client


def read_through(address: str) -> None:
    """Has this process, a worker, read through an I/O process from now on. address: of its socket."""
    global _OWNER, _ENDPOINT
    from headrace.storage.fetching.io_client import IOClient

    _ENDPOINT = IOClient(address)
    registry.leave_words_to_io_process()
    _OWNER = this_process.current
