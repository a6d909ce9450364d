"""The flight recorder of a worker process: its activity, and its Python stacks, legible after its end."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import signal
import time
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from headrace.core.process.activity import LENGTH, STAGE, UNBORN, Activity
from headrace.core.process.descriptors import close_with, nameless_file

TELL_STACKS = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + (3 if hasattr(signal, "SIGRTMIN") else 0)
"""The signal at which a worker writes down its stacks and goes on. One that nobody else uses, where there are such."""

WRITING = 1.0
"""Seconds that a worker has to write down its stacks."""

LARGEST = 1 << 16
"""Bytes of stacks that are read."""


STACK_SAMPLER = str(Path("telemetry", "stack_sampler.py"))
OURS = str(Path(__file__).parents[2])
"""The folder of the loader's own code."""


class CrashFile:
    """One page for the activity, and behind it what `faulthandler` writes. Picklable while a process is being
    started."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Makes a new one; with `descriptor`, opens one that came from another process."""
        if descriptor is None:
            self._fd = nameless_file("activity")
        else:
            self._fd = descriptor

        close_with(self, self._fd)
        if descriptor is None:
            os.ftruncate(self._fd, mmap.PAGESIZE)

        self._page = mmap.mmap(self._fd, mmap.PAGESIZE)
        self.activity: Activity = memoryview(self._page).cast("q")[:LENGTH]  # type: ignore[assignment]  # but for its length

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self._fd),)

    def record(self) -> None:
        """Has the calling process write its stacks here, when a signal ends it and when it is asked for them."""
        os.lseek(self._fd, mmap.PAGESIZE, os.SEEK_SET)
        faulthandler.enable(self._fd)
        faulthandler.register(TELL_STACKS, self._fd)

    def write(self, stacks: str) -> None:
        """Adds stacks that another process has written down."""
        os.pwrite(self._fd, stacks.encode(), os.fstat(self._fd).st_size)

    def stacks(self) -> str:
        """Returns the stacks that were written last; empty if none were."""
        text = os.pread(self._fd, LARGEST, mmap.PAGESIZE).decode(errors="replace")
        return of_the_user(text)

    def ask(self, process: object) -> str:
        """Has a running worker write down its stacks, and returns them; empty if it cannot."""
        if self.activity[STAGE] == UNBORN:
            return ""  # it does not listen yet, and the signal would end it

        before = os.fstat(self._fd).st_size
        send_signal(process, TELL_STACKS)
        deadline = time.monotonic() + WRITING
        written = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            size = os.fstat(self._fd).st_size
            if size == written > before:
                break  # nothing was added for a while
            written = size

        return of_the_user(os.pread(self._fd, LARGEST, before).decode(errors="replace"))


def of_the_user(stacks: str) -> str:
    """Returns stacks, the innermost call first, down to where the loader called the user's code.

    Without that of the thread that only looks on (`telemetry.stack_sampler`).
    """
    kept = []
    ours = False
    threads = re.split(r"^(?=(?:Current thread|Thread) 0x)", stacks.strip(), flags=re.MULTILINE)
    text = "".join(thread for thread in threads if STACK_SAMPLER not in thread)
    for line in text.strip().splitlines():
        is_call = line.startswith("  File ")
        if not (ours and is_call):
            kept.append(line)
        ours = is_call and (ours or OURS in line)

    return "\n".join(kept)


def send_signal(process: Any, number: int) -> None:
    """Sends a signal to a worker that was not waited for yet; nothing if it has ended."""
    if hasattr(process, "send_signal"):
        process.send_signal(number)
    elif process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _received(duplicated: Any) -> CrashFile:
    return CrashFile(duplicated.detach())
