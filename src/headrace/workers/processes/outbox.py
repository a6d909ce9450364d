"""The results that a worker sends together: each message wakes the main process, which takes longer than a small batch.

A result waits only while the worker has tasks, while its batches are quick, and not for long. The next batch may be
slow all the same, and may even wait for something that the loop does once it has this one. So a thread sends what has
waited for longer than was expected.
"""

from __future__ import annotations

import contextlib
import threading
import time
from multiprocessing.connection import Connection

from headrace.workers.processes.messages import INLINE, Result, packed

QUICK = 0.5e-3
"""Seconds that a batch may take, for others to wait for it."""

IN_A_ROW = 8
"""Quick batches after which the next one is expected to be quick, too."""

LONGEST = 4e-3
"""Seconds for which a result may wait, if the next one is as quick as it was expected."""

LATE = 5e-3
"""Seconds between two looks of the thread."""


class Outbox:
    """The results of one worker that were not sent yet."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._results: list[Result] = []
        self._bytes = 0
        self._first = 0.0
        self._quick = 0
        # Between the worker's own thread and the one that looks after what has waited.
        self._lock = threading.Lock()
        self._holds = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, result: Result, *, more: bool) -> None:
        """Sends a result, with those before it, or keeps it for the next call. `more`: whether a task comes next."""
        now = time.perf_counter()
        if result.status == "batch" and now - result.times.begun < QUICK:
            self._quick += 1
        else:
            # On a busy machine a quick batch may wait for a core.
            self._quick = max(min(self._quick, 2 * IN_A_ROW) - IN_A_ROW // 2, 0)

        with self._lock:
            if not self._results:
                self._first = now
            self._results.append(result)
            if isinstance(result.header, bytes):
                self._bytes += len(result.header)
            waits = more and self._quick >= IN_A_ROW and now - self._first < LONGEST and self._bytes < INLINE
            if not waits:
                self._send()

        if waits and not self._holds.is_set():
            self._look_after()

    def send(self) -> None:
        """Sends what has waited."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        if self._results:
            results = self._results
            self._results = []
            self._bytes = 0
            self._pipe.send_bytes(packed(results))

    def _look_after(self) -> None:
        """Has the thread look after what waits from now on."""
        self._holds.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-outbox", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        # Without the main process there is nobody to tell. The worker's own thread notices that, and ends.
        with contextlib.suppress(OSError):
            while True:
                self._holds.wait()
                time.sleep(LATE)
                with self._lock:
                    if not self._results:
                        self._holds.clear()
                    elif time.perf_counter() - self._first > LATE:
                        self._send()
