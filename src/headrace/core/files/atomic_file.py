"""Files that others may read at any moment: they see the old content or the new one, never a part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Writes a file beside its place and renames it. `OSError`: nothing has changed at `path`.

    durable: waits until the disk has the file, so that a power cut right after the call leaves the new content.
    """
    # Several processes may write the same file, on several machines if the folder is shared. None writes into the draft
    # of another one.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with draft.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())

        draft.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        # Nothing is left after the rename. After an error, or Ctrl-C, this is a part of a file.
        draft.unlink(missing_ok=True)


def is_draft(name: str, of: str) -> bool:
    """Tells whether a file of this name is what `write_atomically` has begun for the file `of` beside it."""
    return name.startswith(f".{of}.") and name.endswith(".partial")


def sync_tree(root: Path) -> None:
    """Flushes every file below a folder to the disk."""
    for path in root.rglob("*"):
        if path.is_file():
            sync_file(path)


def sync_file(path: Path) -> None:
    """Flushes a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flushes a folder's list of names to the disk, where that can be done."""
    if os.name == "posix":
        sync_file(path)
