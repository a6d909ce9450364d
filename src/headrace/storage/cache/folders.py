"""The folders of a cache, by descriptor. Links in them are never followed, and names never leave them."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

OBJECTS = "objects"
WHOLE = "whole"
JOBS = "jobs"
HEX = "0123456789abcdef"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """Opens, links, removes and lists files of a cache. Names have one slash: "whole/NAME", or "a/NAME" for objects.

    All methods raise `OSError`. They may be called by several threads; forked children go on with the same descriptors,
    which have no position.
    """

    def __init__(self, path: Path) -> None:
        """Opens the folder `path`, which exists. Makes nothing."""
        self.path = path
        self.descriptors: dict[str, int] = {}
        """The folders that are open, by name."""
        self._lock = threading.Lock()
        self.descriptors[""] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def forget_lock(self) -> None:
        """Is called in a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the descriptors."""
        with self._lock:
            while self.descriptors:
                os.close(self.descriptors.popitem()[1])

    def __del__(self) -> None:
        self.close()

    def open(self, name: str, flags: int, *, make: bool = False) -> int:
        """Opens a file, and returns its descriptor. make: also makes the folder it lies in."""
        folder, base = self._split(name, make)
        return os.open(base, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)

    def status(self, name: str) -> os.stat_result:
        """Returns the status of a file, or of a link itself."""
        folder, base = self._split(name, False)
        return os.stat(base, dir_fd=folder, follow_symlinks=False)

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name. Raises `FileExistsError` if the name is taken."""
        folder, base = self._split(source, False)
        target_folder, target_base = self._split(target, False)
        os.link(base, target_base, src_dir_fd=folder, dst_dir_fd=target_folder, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """Renames a file, in place of one that has the name."""
        folder, base = self._split(source, False)
        target_folder, target_base = self._split(target, False)
        os.replace(base, target_base, src_dir_fd=folder, dst_dir_fd=target_folder)

    def unlink(self, name: str) -> None:
        """Removes a file."""
        folder, base = self._split(name, False)
        os.unlink(base, dir_fd=folder)

    def flush(self, name: str) -> None:
        """Writes the names in the folder of a file to the disk."""
        os.fsync(self._split(name, False)[0])

    def names(self, *folders: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yields the regular files of these folders (all of them: `*HEX`, `WHOLE`, `JOBS`) with their status."""
        for folder in folders:
            try:
                descriptor = self._descriptor(folder, False)
                found = os.listdir(descriptor)  # noqa: PTH208  # pathlib has no descriptors
            except (FileNotFoundError, NotADirectoryError):
                continue

            for base in found:
                try:
                    status = os.stat(base, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield f"{folder}/{base}", status

    def remove_empty(self) -> None:
        """Removes the folders that are empty now."""
        for folder in (*HEX, OBJECTS, WHOLE, JOBS):
            parent = ""
            if folder in HEX:
                parent = OBJECTS
            with contextlib.suppress(OSError):
                os.rmdir(folder, dir_fd=self._descriptor(parent, False))

    def _split(self, name: str, make: bool) -> tuple[int, str]:
        folder, _, base = name.rpartition("/")
        return self._descriptor(folder, make), base

    def _descriptor(self, folder: str, make: bool) -> int:
        descriptor = self.descriptors.get(folder)
        if descriptor is not None:
            return descriptor

        parent = ""
        if folder in HEX:
            parent = OBJECTS
        inside = self._descriptor(parent, make)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=inside)

        with self._lock:
            if folder not in self.descriptors:
                self.descriptors[folder] = os.open(folder, _FOLDER, dir_fd=inside)
            return self.descriptors[folder]
