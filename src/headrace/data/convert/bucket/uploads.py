"""Files of this machine written into a store."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from headrace.storage.stores.objects import Store

BLOCK = 4 << 20
"""Bytes that are read from the file at a time."""


@dataclass(frozen=True)
class Uploaded:
    """An object as it was written."""

    size: int
    """In bytes."""
    crc: int
    """CRC-32 of the bytes that were sent."""
    etag: str | None


class UploadStopped(Exception):
    """The upload was given up by the thread that waits for it."""


class _Terminated(BaseException):
    """SIGTERM came while a file was being uploaded."""


class _Blocks:
    """The bytes of a file, on their way."""

    def __init__(
        self, path: Path, confirm: Callable[[], None], report: Callable[[int], None] | None, stopped: threading.Event
    ) -> None:
        self._path = path
        self._confirm = confirm
        self._report = report
        self.stopped = stopped
        self.crc = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while block := file.read(BLOCK):
                if self.stopped.is_set():
                    raise UploadStopped
                self.crc = zlib.crc32(block, self.crc)
                yield block
                if self._report is not None:
                    self._report(len(block))

        # The store's client asks for the blocks in a thread of its own runtime, in which it takes no other request.
        with ThreadPoolExecutor(1, "headrace-confirm") as thread:
            thread.submit(self._confirm).result()


def upload_file(
    store: Store,
    key: str,
    path: Path,
    confirm: Callable[[], None],
    report: Callable[[int], None] | None = None,
    stopped: threading.Event | None = None,
) -> Uploaded:
    """Writes a file into a store, where it appears when it is complete.

    confirm: called in another thread before the object appears; what it raises aborts the upload.
    report: called there with how many more bytes were sent.
    stopped: once it is set, the upload is aborted and raises `UploadStopped`; for those who upload several at a time.

    Ctrl-C, and SIGTERM in a worker process, abort the upload before they take effect. Raises `StorageError` and
    `OSError`.
    """
    blocks = _Blocks(path, confirm, report, stopped or threading.Event())
    # Signals are heard in the main thread only, and not while the store's client runs there. So another thread uploads,
    # and this one waits: if it is interrupted, the blocks end with an exception, for which the client aborts.
    try:
        with _terminations_raised(), ThreadPoolExecutor(1, "headrace-upload") as thread:
            try:
                info = thread.submit(store.write, key, blocks).result()
            except BaseException:
                blocks.stopped.set()
                raise
    except _Terminated:
        os.kill(os.getpid(), signal.SIGTERM)
        raise

    return Uploaded(info.size, blocks.crc, info.etag)


@contextlib.contextmanager
def _terminations_raised() -> Iterator[None]:
    """Has SIGTERM raise `_Terminated` in the main thread of a worker process; elsewhere it is left alone."""
    is_worker = multiprocessing.parent_process() is not None
    is_main = threading.current_thread() is threading.main_thread()
    if not is_worker or not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated
