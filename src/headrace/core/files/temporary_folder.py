"""A folder for the time of a block, which is removed also where SIGTERM ends the process."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from headrace.core.process import this_process


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Makes a folder in that for temporary files, and removes it at the end of the block.

    A handler that the program has for SIGTERM stays, and decides what becomes of the folder.
    """
    folder = Path(tempfile.gettempdir(), prefix + secrets.token_hex(8))
    # The name comes first: SIGTERM may come between any two steps, and the folder must be known from its first moment.
    with _removed_at_sigterm(folder):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)


@contextlib.contextmanager
def _removed_at_sigterm(folder: Path) -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    process = this_process.current

    def end(number: int, frame: FrameType | None) -> None:
        # An exception would be lost where the signal comes in a finalizer, and the program would go on. To a forked
        # child, which has the handler too, the folder does not belong.
        if process is this_process.current:
            shutil.rmtree(folder, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
