"""How much memory a process and its children take together."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

SAMPLING = 0.25
"""Seconds between two looks at the memory."""


def tree_memory(pid: int) -> int:
    """Returns the memory of a process and all its descendants in bytes, shared pages counted once (Linux's PSS).

    0 where the machine does not tell, or once the process is gone.
    """
    return memory_of(process_tree(pid))


def shared_out_memory(pid: int) -> tuple[int, int]:
    """Returns the memory of a process, and that of all its descendants, in bytes, shared pages counted once."""
    main, *others = process_tree(pid)
    return _proportional_bytes(main), memory_of(others)


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
    """Returns the bytes of memory that this process may use: the machine's, or less where a cgroup says so."""
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
    """Returns the bytes of memory that this process may still take, by the machine and by its cgroup."""
    free = machine_memory()
    with contextlib.suppress(OSError):
        free = _kilobytes(Path("/proc/meminfo"), "MemAvailable:") or free

    # "max", where there is no limit, is no number.
    with contextlib.suppress(OSError, ValueError):
        taken = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()) - taken)

    return max(free, 0)


def give_back_memory() -> None:
    """Gives memory that was freed back to the system, which C's allocator keeps otherwise: glibc only."""
    import ctypes

    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def oom_kills() -> int:
    """Returns how many processes of this cgroup the kernel has killed for want of memory; 0 if nobody counts."""
    for path in _counting_files():
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue  # another version of cgroups, or none

        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])

    return 0


def _counting_files() -> Iterator[Path]:
    """Yields where cgroups, version 2 and 1, count: first of this process's group, then of the outermost one."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return

    # "number:controllers:group". Version 2 has one line, without controllers; version 1 one for each hierarchy.
    files_of_v2 = []
    files_of_v1 = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        group = group.strip("/")
        if controllers == "":
            root = Path("/sys/fs/cgroup")
            files_of_v2 += [root / group / "memory.events", root / "memory.events"]
        if "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            files_of_v1 += [root / group / "memory.oom_control", root / "memory.oom_control"]

    # Within a container the group's path may be the host's, which does not exist here. The outermost group does.
    yield from files_of_v2
    yield from files_of_v1


def process_tree(root: int) -> list[int]:
    """Returns a process, its children, their children, and so on; those of a process that has ended are not found."""
    members = [root]
    generation = [root]
    while generation:
        generation = _children_of(generation)
        members += generation

    return members


def _children_of(processes: Iterable[int]) -> list[int]:
    children: list[int] = []
    for pid in processes:
        # Each thread lists the children that it has started itself. Processes and threads may end meanwhile.
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
            for thread in threads:
                with contextlib.suppress(OSError):
                    children += map(int, Path(thread.path, "children").read_text().split())

    return children


def _proportional_bytes(pid: int) -> int:
    try:
        return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    except OSError:
        return 0  # it ended meanwhile, or this machine has no such file


def _kilobytes(file: Path, name: str) -> int:
    """Returns in bytes what a file of /proc tells in kB, as "name   123 kB"; 0 if it has no such line."""
    for line in file.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0
