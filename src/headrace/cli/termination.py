"""What becomes of a command that is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ending_tidily() -> Iterator[None]:
    """Has SIGTERM end this process as an error does: folders that were made for a while are removed.

    Another handler stays. Forked workers end as ever: the folders are not theirs.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        # As the shell tells of a process that a signal has ended.
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
