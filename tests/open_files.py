"""Which files this process has open."""

from __future__ import annotations

import contextlib
from pathlib import Path


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
