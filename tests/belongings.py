"""What belongs to this process, where other tests and other programs have theirs beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from headrace import DataLoader
from headrace.core.process.memory import process_tree

Children = Callable[[], list[BaseProcess]]
"""Tells which child processes were started since the test began and still run: the fixture `children`."""


def open_files(folder: Path) -> list[str]:
    """Returns the files under `folder` that this process has open, those that are removed included.

    All descriptors together say little: threads of clients that earlier tests have used open and close connections.
    """
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        # Another thread may have closed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(entry.readlink()))
    return [target for target in targets if target.startswith(f"{folder}/")]


def shared_memory(loader: DataLoader[Any]) -> int:
    """Returns the bytes of shared memory that hold batches of a loader, also those that no process maps any more."""
    assert loader._session.resources.arena is not None
    return os.fstat(loader._session.resources.arena._backing.fd).st_blocks * 512


def own_memory() -> int:
    """Returns the bytes of this process and its children, without files: their pages are shared with other programs."""
    found = 0
    for pid in process_tree(os.getpid()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it was killed
        found += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return found
