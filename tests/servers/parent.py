"""Ends a program with the process that has started it: `python parent.py PID PROGRAM ARGUMENTS...`.

The kernel does it (`prctl(PR_SET_PDEATHSIG)`), so that also a test run that is killed leaves no server behind. This
program sets that, and becomes the other one: in a process with threads, nothing may run between fork and exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal when the thread ends that has started it. Ends it if that is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_with_parent() -> None:
    """The same, for the process that is the parent now."""
    end_with(os.getppid())


def bound_to_this_process(command: list[str]) -> list[str]:
    """Returns a command that does the same and ends with the thread that starts it, and so with this process."""
    return [sys.executable, "-S", "-E", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
