"""How much memory a process and its children take together."""

from __future__ import annotations

import os
import threading
from pathlib import Path

SAMPLING = 0.25
"""Seconds between two looks at the memory."""


def tree_memory(pid: int) -> int:
    """Returns the memory of a process and all its descendants in bytes, shared pages counted once (Linux's PSS).

    0 where the machine does not tell, or once the process is gone.
    """
    return sum(_proportional_bytes(member) for member in _tree(pid))


class PeakMemory:
    """Looks at the memory of a process tree from a thread, inside a `with`; `peak` is in bytes."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLING):
            self._look()

    def _look(self) -> None:
        self.peak = max(self.peak, tree_memory(self._pid))


def machine_memory() -> int:
    """Returns the bytes of memory that this process may use: the machine's, or less where a control group says so."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 4 << 30
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path("/sys/fs/cgroup", limit).read_text()))
        except (OSError, ValueError):
            continue  # there is no such limit, or it reads "max"
    return total


def _tree(root: int) -> list[int]:
    members = [root]
    for pid in members:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                members.extend(int(child) for child in children.read_text().split())
            except OSError:
                continue  # the thread ended meanwhile
    return members


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it ended meanwhile, or this machine has no such file
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
