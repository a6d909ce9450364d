"""How much memory a process and its children take together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

SAMPLING = 0.25
"""Seconds between two looks at the memory."""


def tree_memory(pid: int) -> int:
    """Returns the memory of a process and all its descendants in bytes, shared pages counted once (Linux's PSS).

    0 where the machine does not tell, or once the process is gone.
    """
    return sum(_proportional_bytes(member) for member in process_tree(pid))


def shared_out_memory(pid: int) -> tuple[int, int]:
    """Returns the memory of a process, and that of all its descendants, in bytes, shared pages counted once."""
    main, *others = process_tree(pid)
    return _proportional_bytes(main), sum(_proportional_bytes(member) for member in others)


def memory_of(processes: Iterable[int]) -> int:
    """Returns the memory of some processes in bytes, each with its share of what it has in common with others."""
    return sum(map(_proportional_bytes, processes))


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
    if hasattr(os, "sysconf"):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        total = 4 << 30

    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path("/sys/fs/cgroup", limit).read_text()))
        except (OSError, ValueError):
            continue  # there is no such limit, or it reads "max"

    return total


def free_memory() -> int:
    """Returns the bytes of memory that this process may still take, by the machine and by its control group."""
    free = machine_memory()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10

    with contextlib.suppress(OSError, ValueError):
        taken = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()) - taken)

    return max(free, 0)


def oom_kills() -> int:
    """Returns how many processes of this control group the kernel has killed for want of memory; 0 if nobody counts."""
    for path in _counting_files():
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue  # another version of control groups, or none

        counts = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
        if counts:
            return counts[0]

    return 0


def _counting_files() -> Iterator[Path]:
    """Yields where control groups, version 2 and 1, count: first of this process's group, then of the outermost one."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return

    places = [("memory.events", group) for _, kind, group in groups if kind == ""]
    places += [("memory/memory.oom_control", group) for _, kind, group in groups if "memory" in kind.split(",")]
    for name, group in places:
        folder, _, file = f"/{name}".rpartition("/")
        for inner in (group, ""):
            yield Path(f"/sys/fs/cgroup{folder}{inner if inner != '/' else ''}") / file


def process_tree(root: int) -> list[int]:
    """Returns a process, its children, their children, and so on; those of a process that has ended are not found."""
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
