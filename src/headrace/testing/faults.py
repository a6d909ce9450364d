"""Faults: things that go wrong on purpose, in the process and thread that calls them.

A fault is a small frozen record without state; `fault()` lets it happen. All can be pickled, so a dataset that holds
them travels to worker processes of every start method. Faults that cost memory are in `memory_faults.py`.
"""

from __future__ import annotations

import copy
import ctypes
import math
import os
import signal as signals
import sys
import threading
import time
from dataclasses import dataclass
from typing import NoReturn, Protocol


class Fault(Protocol):
    """Anything that can be called without arguments and pickled: write your own as a function of a module.

    Examples:
        >>> from headrace.testing import Faulty
        >>> def lose_power() -> None:
        ...     raise OSError("no power")
        >>> dataset = Faulty([1, 2, 3], {1: lose_power})
    """

    def __call__(self) -> object:
        """Lets the fault happen. Where it returns, the work goes on as if nothing had been."""


@dataclass(frozen=True)
class Raise:
    """Raises an exception: a corrupt file, a bad label, a lost connection.

    Each call raises a copy, so that neither tracebacks nor notes pile up on one object. An exception that cannot be
    copied is raised itself.

    Attributes:
        error: the exception.

    Examples:
        >>> from headrace.testing import Raise
        >>> Raise(ValueError("broken"))()
        Traceback (most recent call last):
        ValueError: broken
    """

    error: BaseException

    def __call__(self) -> NoReturn:
        """Raises the error."""
        raise _fresh(self.error)


@dataclass(frozen=True)
class Exit:
    """Ends the process at once with an exit code: no cleaning up, no flushing, no exception.

    Attributes:
        code: of the process, 0 to 255.

    Examples:
        >>> from headrace.testing import Exit, Faulty
        >>> dataset = Faulty([1, 2, 3], {1: Exit(3)}, times=1)  # ends one worker, once
    """

    code: int = 1

    def __call__(self) -> NoReturn:
        """Ends the process."""
        os._exit(self.code)


@dataclass(frozen=True)
class Segfault:
    """Reads from address 0, as a broken C extension does. The process leaves no core file.

    Examples:
        >>> from headrace.testing import Faulty, Segfault
        >>> dataset = Faulty([1, 2, 3], {1: Segfault()}, times=1)  # ends one worker, once
    """

    def __call__(self) -> None:
        """Ends the process by a real SIGSEGV."""
        if sys.platform != "win32":
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        ctypes.string_at(0)


@dataclass(frozen=True)
class Kill:
    """Sends the own process a signal. The default, SIGKILL, is what the kernel's OOM killer sends.

    Attributes:
        signal: its number.

    Examples:
        >>> from headrace.testing import Faulty, Kill
        >>> dataset = Faulty([1, 2, 3], {1: Kill()}, times=1)  # ends one worker, once
    """

    signal: int = getattr(signals, "SIGKILL", signals.SIGTERM)

    def __call__(self) -> None:
        """Sends the signal; returns if a handler or the signal's default lets the process live."""
        os.kill(os.getpid(), self.signal)


@dataclass(frozen=True)
class Hang:
    """Waits without using the processor: so many seconds, or until a signal ends the process.

    Signal handlers run meanwhile in the main thread. A thread that hangs without `seconds` cannot be ended.

    Attributes:
        seconds: how long; None: for ever.

    Examples:
        >>> from headrace.testing import Faulty, Hang
        >>> Faulty([1, 2, 3], {1: Hang(0.01)})[1]
        2
    """

    seconds: float | None = None

    def __call__(self) -> None:
        """Waits; returns only if `seconds` is given."""
        end = math.inf
        if self.seconds is not None:
            end = time.monotonic() + self.seconds
        never = threading.Event()
        while (left := end - time.monotonic()) > 0:
            # A second at a time: a signal that comes just before a thread falls asleep does not wake it.
            never.wait(min(left, 1.0))


def _fresh(error: BaseException) -> BaseException:
    try:
        fresh = copy.copy(error)
    except Exception:  # noqa: BLE001 - a constructor with arguments of its own may raise anything
        return error

    if type(fresh) is not type(error):
        return error

    notes = getattr(error, "__notes__", None)
    if notes is not None:
        fresh.__notes__ = list(notes)
    return fresh
