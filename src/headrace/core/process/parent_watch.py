"""What ends a child when this process is gone, however it went, and whatever the child hangs in.

The kernel does it: Linux sends the signal of `F_SETSIG` to the process of `F_SETOWN` when the last writing end of a
pipe is closed. Only this process has a writing end, and each child a reading end of its own. `PR_SET_PDEATHSIG` would
end workers with the thread that started them, and none that have another parent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from multiprocessing import reduction
from typing import Any

from headrace.core.process import this_process
from headrace.core.process.descriptors import close_with

_making = threading.RLock()
_pipe: tuple[int, int] | None = None
"""The reading and the writing end. They stay open as long as this process lives."""


def kept_descriptors() -> tuple[int, ...]:
    """Returns those that this process keeps until it ends, from its first child on."""
    return _pipe or ()


class ParentWatch:
    """A reading end for one child, which must keep it open. Picklable while a process is being started.

    Does nothing on other systems than Linux: there a worker notices the end of its parent behind the sample it is at.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Makes one for a child of this process. descriptor: one that came from the parent, or None there."""
        self._fd = descriptor
        if descriptor is not None:
            close_with(self, descriptor)

    @classmethod
    def for_child(cls) -> ParentWatch:
        """Returns one for a child that this process is about to start. Raises OSError if no descriptor is left."""
        if sys.platform != "linux":
            return cls()
        return cls(_opened_anew())

    @property
    def descriptors(self) -> list[int]:
        """What a program that is started must inherit, and may leave alone."""
        return [] if self._fd is None else [self._fd]

    def bind(self, pid: int) -> None:
        """Has the kernel kill a child that keeps this open, also while it has not run any of its own code yet."""
        if self._fd is None or sys.platform != "linux":
            return

        import fcntl

        with contextlib.suppress(OSError):  # it has ended
            fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self._fd, fcntl.F_SETOWN, pid)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)

    def begin(self) -> None:
        """In the child: binds this process, and ends it if the parent was gone before it was bound."""
        self.bind(os.getpid())
        if self._fd is not None:
            poll = select.poll()
            poll.register(self._fd, 0)
            # A hang-up is told unasked.
            if poll.poll(0):
                os._exit(1)

    def __reduce__(self) -> Any:
        if self._fd is None:
            return ParentWatch, ()
        return _received, (reduction.DupFd(self._fd),)


def _received(duplicated: Any) -> ParentWatch:
    return ParentWatch(duplicated.detach())


def _opened_anew() -> int | None:
    """Opens the reading end once more: a signal belongs to what was opened, which copies of a descriptor share."""
    global _pipe
    with _making:
        if _pipe is None:
            _pipe = os.pipe()
    try:
        return os.open(f"/proc/self/fd/{_pipe[0]}", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:  # no /proc is mounted here
        return None


def _leave_to_parent() -> None:
    # In a forked child, which would keep the parent's other children alive. Another thread may have held the lock.
    global _making, _pipe
    _making = threading.RLock()
    if _pipe is not None:
        for end in _pipe:
            os.close(end)
    _pipe = None


this_process.in_forked_child(_leave_to_parent)
