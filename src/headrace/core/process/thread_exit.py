"""What becomes of a thread that loads batches while Python exits."""

from __future__ import annotations

import threading


def leave_daemon_thread() -> None:
    """Ends the calling thread in silence, unless it is the main thread. Call it only while Python exits.

    Python waits for all threads but daemons before it ends the workers. A daemon thread may still be waiting for a
    batch then. Nobody would handle an error that it raised, so it would only be printed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SystemExit
