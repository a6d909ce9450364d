"""Kills processes from outside, now and then, as a machine short of memory does."""

from __future__ import annotations

import os
import random
import signal as signals
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

SIGKILL: int = getattr(signals, "SIGKILL", signals.SIGTERM)


class Killer:
    """Inside a `with`, kills a random one of some processes every so often; never the own process.

    The choice depends on `seed` and on what `pids` returns, the moment on the clock. An exception in `pids` ends the
    killing and is raised at the end of the `with`.

    Attributes:
        kills: seconds since the `with` began, and the process, of each kill.

    Args:
        pids: is called before each kill, in a thread of the killer, and returns who may be killed at that moment;
            processes that are gone are passed over.
        every: seconds between kills; the first one comes after that time.
        seed: of the choice.
        signal: that is sent.

    Examples:
        >>> from headrace.testing import Killer, descendants
        >>> with Killer(descendants, every=60) as killer:
        ...     batches = list(headrace.DataLoader([1, 2, 3]))
        >>> killer.kills
        []
    """

    def __init__(self, pids: Callable[[], Sequence[int]], every: float, seed: int = 0, signal: int = SIGKILL) -> None:
        self.kills: list[tuple[float, int]] = []
        """Seconds since the `with` began, and the process."""
        self._pids = pids
        self._every = every
        self._random = random.Random(seed)
        self._signal = signal
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-killer", daemon=True)

    def __enter__(self) -> Killer:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every):
                self._kill_one()
        except Exception as error:  # noqa: BLE001 - `pids` may raise anything; raised again in the with's thread
            self._error = error

    def _kill_one(self) -> None:
        pids = [pid for pid in self._pids() if pid > 0 and pid != os.getpid()]
        if not pids:
            return

        pid = self._random.choice(pids)
        try:
            os.kill(pid, self._signal)
        except ProcessLookupError:
            return

        self.kills.append((time.monotonic() - self._began, pid))
