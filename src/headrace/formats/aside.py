"""Nothing half-written: new data are made aside, flushed to the disk, and then put in place in one step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headrace.core.errors import FormatError, explain

MARK = ".partial"


class Aside:
    """A folder beside the target, in which the new data are made.

    `path` is what becomes the target: a file or a folder of that name. Beside a file, `companion` becomes a second file.
    """

    def __init__(self, target: str, *, folder: bool) -> None:
        self.target = Path(target)
        self._folder = folder
        if self.target.name in ("", ".", ".."):
            expected = "a path that ends in a name"
            raise FormatError(explain("cannot write here", place=target, found=f"{target!r}", expected=expected))
        if self.target.exists() and self.target.is_dir() != folder:
            found, expected = ("a file", "a folder") if folder else ("a folder", "a file")
            cure = "choose another target, or remove it"
            raise FormatError(explain("cannot write here", place=target, found=found, expected=expected, cure=cure))
        self._room = self.target.with_name(f".{self.target.name}{MARK}-{os.getpid()}")
        if self._room.exists():
            shutil.rmtree(self._room)
        self.path = self._room / self.target.name
        (self.path if folder else self._room).mkdir(parents=True)

    def commit(self, companion: Path | None = None) -> None:
        """Puts what was made into place. `companion`: a second file made beside `path`, which goes beside the target."""
        sync_tree(self._room)
        beside = None if companion is None else self.target.with_name(companion.name)
        if beside is not None:
            beside.unlink(missing_ok=True)
        if self._folder and self.target.exists():
            old = self._room / "old"
            self.target.rename(old)
        self.path.replace(self.target)
        if companion is not None and beside is not None:
            companion.replace(beside)
        sync_folder(self.target.parent)
        shutil.rmtree(self._room)

    def abort(self) -> None:
        """Removes what was made."""
        shutil.rmtree(self._room, ignore_errors=True)


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


def write_text_aside(path: Path, text: str) -> None:
    """Replaces a small file in one step."""
    new = path.with_name(f".{path.name}{MARK}-{os.getpid()}")
    new.write_text(text, "utf-8")
    sync_file(new)
    new.replace(path)
