"""How much memory a process and its children take together."""

from __future__ import annotations

from pathlib import Path


def tree_memory(pid: int) -> int:
    """Returns the memory of a process and all its descendants in bytes, shared pages counted once (Linux's PSS).

    0 where the machine does not tell, or once the process is gone.
    """
    return sum(_proportional_bytes(member) for member in _tree(pid))


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
