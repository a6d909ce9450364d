"""Runs one crash in a process of its own, and reports what its user saw and what was left of it.

The process is a fork of the one that runs the tests, so torch is imported already, and leads a session of its own: what
it leaves behind can be told by the session's number, also after it has gone itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

LIMIT = 30.0
"""Seconds that a crash may take; then it counts as a hang."""

PATIENCE = 15.0
"""Seconds that those have to end whom a process leaves behind."""


@dataclass
class Seen:
    """What the user of a loader saw."""

    batches: list[list[int]] = field(default_factory=list)
    error: str | None = None
    """The type of the exception that ended the loop."""
    text: str = ""
    """Its text, notes and cause, with their tracebacks left out."""
    replaced: list[tuple[Any, str]] = field(default_factory=list)
    """Keys of bad samples, and what became of them."""
    restarts: int = 0
    workers: int = 0
    """Processes and threads that work on after the end of the loop."""
    again: Seen | None = None
    """What was seen in the next epoch of the same loader."""


@dataclass
class Ending:
    """What became of a process that ran a crash."""

    seen: Seen | None
    """None: it did not live to tell."""
    exitcode: int | None
    """None: it hung, and was ended."""
    left: list[str]
    """Processes that it left behind."""
    seconds: float
    noise: str


class Running:
    """One crash that is running: `function(say, folder)` in a process of its own.

    `say` is a descriptor: when something is written to it, the whole process group gets Ctrl-C, as from a terminal.
    What `function` returns is the report; it may use `folder`, which must be empty.
    """

    def __init__(
        self, function: Callable[[int, Path], Seen], folder: Path, *, limit: float = LIMIT, patience: float = PATIENCE
    ) -> None:
        self._folder, self._limit, self._patience = folder, limit, patience
        self._began = time.monotonic()
        self._hears, says = os.pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_lead, args=(function, folder, says))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test's process may have threads
            self._process.start()
        os.close(says)
        self.pid = self._process.pid or 0
        self._pidfd = os.pidfd_open(self.pid)

    def ending(self) -> Ending:
        """Waits for the end, and for those who are left behind."""
        with contextlib.closing(os.fdopen(self._pidfd)), contextlib.closing(os.fdopen(self._hears)):
            ended = self._wait()
            if not ended:
                _kill(session(self.pid))
            self._process.join()
        left = [_name(pid) for pid in _still_there(self.pid, self._patience if ended else 0.0)]
        _kill(session(self.pid))
        _still_there(self.pid, PATIENCE)
        code, report = self._process.exitcode, self._folder / "report"
        self._process.close()
        seen = pickle.loads(report.read_bytes()) if report.exists() else None
        noise = (self._folder / "noise").read_text(errors="replace")
        return Ending(seen, code if ended else None, left, time.monotonic() - self._began, noise)

    def _wait(self) -> bool:
        """Waits for the end of the process. False: it hangs."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.register(self._hears, select.POLLIN)
        deadline = max(self._began + self._limit, time.monotonic() + self._limit / 2)  # it may have waited for Ctrl-C
        while (left := deadline - time.monotonic()) > 0:
            for ready, _ in poll.poll(left * 1000):
                if ready == self._pidfd:
                    return True
                poll.unregister(self._hears)
                if os.read(self._hears, 100):
                    os.killpg(self.pid, signal.SIGINT)
        return False


def _lead(function: Callable[[int, Path], Seen], folder: Path, say: int) -> None:
    """The life of the process."""
    os.setsid()
    noise = os.open(folder / "noise", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(noise, 1)
    os.dup2(noise, 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", closefd=False)
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tempfile.tempdir = str(folder)
    seen = function(say, folder)
    (folder / "report.part").write_bytes(pickle.dumps(seen))
    (folder / "report.part").rename(folder / "report")


def session(number: int) -> list[int]:
    """Returns the processes of a session that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == number and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def _still_there(leader: int, seconds: float) -> list[int]:
    """Returns the processes of a session that have not ended after so many seconds."""
    deadline = time.monotonic() + seconds
    for pid in session(leader):
        with contextlib.suppress(ProcessLookupError), contextlib.closing(os.fdopen(os.pidfd_open(pid))) as pidfd:
            select.select([pidfd], [], [], max(deadline - time.monotonic(), 0))
    return session(leader)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ')[:80]!r}"
    return str(pid)
