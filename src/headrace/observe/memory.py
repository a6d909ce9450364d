"""How much memory a process and its children take together."""

from __future__ import annotations

import os
from pathlib import Path


def tree_memory(pid: int) -> int:
    """Returns the memory of a process and all its descendants in bytes, shared pages counted once (Linux's PSS).

    0 where the machine does not tell, or once the process is gone.
    """
    return sum(_proportional_bytes(member) for member in _tree(pid))


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
