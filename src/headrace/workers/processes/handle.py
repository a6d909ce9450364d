"""A worker process, held by its pidfd: the kernel's own word on whether that very process runs.

multiprocessing tells the end of a process in two other ways, and both may be wrong. Its `sentinel` is a pipe, which
children of the worker inherit and keep open. Its exit code never comes where SIGCHLD is ignored or where the program
waits for any child itself. A process number alone is not safe either: once somebody else has waited for the worker, the
number may belong to a stranger.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from abc import ABC, abstractmethod
from multiprocessing import process as multiprocessing_process
from typing import Any

from headrace.core.process.descriptors import close_with


def pidfds_exist() -> bool:
    """True where the operating system has descriptors of processes."""
    return hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")


class ProcessHandle(ABC):
    """The part of `multiprocessing.Process` that loaders use. Owns `sentinel`, and closes it when collected."""

    daemon = True
    name: str
    pid: int

    sentinel: int
    """The pidfd; readable once the process has ended."""

    def _own(self, pidfd: int) -> None:
        self.sentinel = pidfd
        close_with(self, pidfd)

    @property
    @abstractmethod
    def exitcode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs, or if nobody knows."""

    def is_alive(self) -> bool:
        """True while it runs."""
        return not readable(self.sentinel, 0)

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, at most `timeout` seconds, and clears away what is left of it."""
        readable(self.sentinel, timeout)
        _ = self.exitcode  # whoever asks for the exit code takes the zombie away

    def terminate(self) -> None:
        """Sends SIGTERM, if it still runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        if not self.is_alive():
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, number)


class ChildProcess(ProcessHandle):
    """A child that multiprocessing started, which `process` describes."""

    def __init__(self, process: Any) -> None:
        """Takes a process that was started just now. Raises OSError if there is no descriptor left."""
        self.process = process
        self.pid = process.pid
        self.name = process.name
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended, and somebody else has waited for it
            pidfd = _readable_for_ever()

        self._own(pidfd)

    @property
    def exitcode(self) -> int | None:
        if self.is_alive():
            return None

        code: int | None = self.process.exitcode
        if code is None:  # somebody else waited for it; multiprocessing would ask for ever, and keep its descriptors
            multiprocessing_process._children.discard(self.process)  # type: ignore[attr-defined]
        return code


def readable(fd: int, timeout: float | None) -> bool:
    """Waits up to `timeout` seconds (None: for ever) until a descriptor can be read; returns whether it can."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)  # a hang-up is told as well
    if timeout is None:
        return bool(poll.poll(None))
    return bool(poll.poll(max(timeout, 0) * 1000))


def _readable_for_ever() -> int:
    reading_end, writing_end = os.pipe()
    os.close(writing_end)
    return reading_end
