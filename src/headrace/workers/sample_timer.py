"""`OnError(timeout=)` where samples are loaded in the user's own thread: a watching thread interrupts it by a signal.

What a signal can interrupt is interrupted: sleeping, waiting for locks, reading from sockets, Python code. Code that
never comes back to the interpreter cannot be; then the log says where it is.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

from headrace.core.errors import SampleTimeoutError, explain
from headrace.core.process.activity import COLLATE, JUDGE, LOAD, PLACE, STAGE, TASK, Activity, private_activity

LOGGER = logging.getLogger("headrace")

INTERRUPT = getattr(signal, "SIGRTMIN", signal.SIGALRM) + (4 if hasattr(signal, "SIGRTMIN") else 0)
"""The signal that interrupts; one that nobody else uses, where there are such."""


class SampleTimer:
    """One loader's. It is armed while a batch is made in the main thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._activity = private_activity()
        self._armed = threading.Event()
        self._ended = threading.Event()
        self._due = False
        weakref.finalize(self, self._ended.set)
        watching = _Watching(weakref.ref(self), self._armed, self._ended, seconds)
        threading.Thread(target=watching.run, name="headrace-sample-timer", daemon=True).start()

    @contextlib.contextmanager
    def armed(self, activity: Activity) -> Iterator[None]:
        """Raises `SampleTimeoutError` inside of the `with` if a sample takes too long. `activity` says what is done."""
        if threading.current_thread() is not threading.main_thread():
            yield  # no signal reaches other threads
            return

        self._due = False
        self._activity = activity
        _install(self)
        self._armed.set()
        try:
            yield
        finally:
            self._armed.clear()

    def doing(self) -> tuple[int, int, int]:
        """Returns what the activity says now."""
        return self._activity[TASK], self._activity[STAGE], self._activity[PLACE]

    def ring(self) -> None:
        """Interrupts the main thread. Called by the watching thread."""
        self._due = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, INTERRUPT)

    def answer(self) -> None:
        """Raises in the main thread, if the alarm still holds there."""
        if self._due and self._armed.is_set() and self._activity[STAGE] in (LOAD, COLLATE, JUDGE):
            self._due = False
            raise too_slow(self.seconds)


class _Watching:
    """The thread that watches; it keeps nothing alive."""

    def __init__(
        self, alarm: weakref.ref[SampleTimer], armed: threading.Event, ended: threading.Event, seconds: float
    ) -> None:
        self._timer = alarm
        self._armed = armed
        self._ended = ended
        self._seconds = seconds

    def run(self) -> None:
        """Rings when the activity has not changed for too long while the alarm was armed; says so where that is no
        use."""
        seen: Any = None
        since = time.monotonic()
        rung = 0
        while not self._ended.wait(max(self._seconds / 4, 0.01)):
            alarm = self._timer()
            if alarm is None:
                return
            if self._armed.is_set():
                now = alarm.doing()
            else:
                now = None

            if now is None or now != seen:
                seen = now
                since = time.monotonic()
                rung = 0
            elif time.monotonic() - since >= self._seconds * (rung + 1):
                rung += 1
                alarm.ring()
                if rung == 2:
                    LOGGER.warning("headrace: %s", too_slow(self._seconds, _main_stack()))

            del alarm


_current: weakref.ref[SampleTimer] | None = None
_installed = False


def _install(alarm: SampleTimer) -> None:
    global _current, _installed
    _current = weakref.ref(alarm)
    if not _installed:
        signal.signal(INTERRUPT, _answer)  # for good: a signal that comes late must not end the process
        _installed = True


def _answer(number: int, frame: object) -> None:
    if _current is not None:
        alarm = _current()
    else:
        alarm = None

    if alarm is not None:
        alarm.answer()


def _main_stack() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None:
        return "".join(traceback.format_stack(frame))
    return ""


def too_slow(seconds: float, stack: str = "", doing: str | None = None) -> SampleTimeoutError:
    """Returns the error of a sample that takes too long; `stack`: where it is; `doing`: what is done, in words."""
    message = explain(
        "a sample takes too long",
        place=doing,
        found=f"no progress for {seconds:g} s",
        expected="a sample within the timeout of on_error",
        fix="fix what it waits for, raise the limit, or have such samples skipped or replaced with on_error=",
    )
    error = SampleTimeoutError(message)
    if stack:
        error.add_note(f"headrace: the stack of the thread was:\n{stack}")
    return error
