"""Nothing half-written: new data are made aside, flushed to the disk, and then put in place in one step."""

from __future__ import annotations

import glob
import json
import os
import shutil
from pathlib import Path

from headrace.core.errors import FormatError
from headrace.core.files.atomic_file import sync_folder, sync_tree
from headrace.core.files.disk_names import on_disk

MANIFEST = "headrace.json"
"""The name of a manifest in a folder, and behind that of the data beside them; see `manifest.py`."""

MARK = ".partial"
OLD = "old data"


class AtomicTarget:
    """A folder beside the target, in which the new data are made.

    `path` is what becomes the target: a file or a folder of that name. An existing folder is only replaced if it is
    empty or holds packed data: a manifest, or nothing but what one beside it names. Anything else in it would be lost.
    """

    def __init__(self, target: str, *, folder: bool) -> None:
        self.target = Path(target)
        self._folder = folder
        if self.target.name in ("", ".", ".."):
            expected = "a path that ends in a name"
            raise FormatError.about("cannot write here", place=target, found=f"{target!r}", expected=expected)

        if self.target.is_symlink() and not _leads_somewhere(self.target):
            fix = "remove it, or choose another target"
            raise FormatError.about("cannot write here", place=target, found="a link that leads nowhere", fix=fix)

        if self.target.exists():
            self._check_replaceable()

        self._staging = self.target.with_name(f".{self.target.name}{MARK}-{os.getpid()}")
        # In the folder of the target, not in a temporary one: only within a file system is a rename one step.
        self.remove_abandoned()
        self.path = self._staging / self.target.name
        if folder:
            new_folder = self.path
        else:
            new_folder = self._staging

        new_folder.mkdir(parents=True)

    def _check_replaceable(self) -> None:
        found = None
        if self.target.is_dir() != self._folder:
            if self._folder:
                found = "a file"
            else:
                found = "a folder"
        elif self._folder and not (self.target / MANIFEST).is_file():
            others = self._not_packed()
            if others:
                found = f"a folder with {others:,} files or folders, which headrace did not pack"

        if found is not None:
            fix = "choose another target, or remove it yourself"
            raise FormatError.about("there is something already", place=self.target, found=found, fix=fix)

    @property
    def _manifest_beside(self) -> Path:
        return self.target.with_name(f"{self.target.name}.{MANIFEST}")

    def _not_packed(self) -> int:
        """Returns how many files of a folder no manifest beside it names; without one, how much lies in the folder."""
        try:
            packed = set(map(on_disk, json.loads(self._manifest_beside.read_bytes())["files"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return len(list(self.target.iterdir()))

        others = 0
        for file in self.target.rglob("*"):
            others += not file.is_dir() and file.relative_to(self.target).as_posix() not in packed
        return others

    def remove_abandoned(self) -> None:
        """Removes what processes that are gone have left beside this target."""
        for staging in self.target.parent.glob(f".{glob.escape(self.target.name)}{MARK}-*"):
            pid = staging.name.rpartition("-")[2]
            # A folder of this very process is of an earlier writer of it that was given up; one of another process
            # that still runs is in use. A number that the system has given to a new process keeps the folder longer.
            if pid.isdigit() and (int(pid) == os.getpid() or not _is_running(int(pid))):
                self._put_back(staging)
                shutil.rmtree(staging, ignore_errors=True)

    def commit(self, companion: Path | None = None, *, synced: bool = False) -> None:
        """Puts what was made into place. `companion`: the manifest made beside `path`; it goes beside the target."""
        # The bytes first, then the names: a rename may reach the disk before the data, and a power cut in between would
        # leave the new name over an empty file.
        if not synced:
            sync_tree(self._staging)

        # The old manifest goes before the new data come: between the two there is none, which is allowed. An old one
        # beside new data would call them damaged.
        self._manifest_beside.unlink(missing_ok=True)

        if self._folder and self.target.exists():
            # No system call exchanges two folders everywhere, so that the target is missing between these two renames.
            # A kill there leaves the old data in the staging folder: `remove_abandoned` puts them back at the next run.
            try:
                self.target.rename(self._staging / OLD)
                self.path.replace(self.target)
            except BaseException:
                self._put_back(self._staging)
                raise
        else:
            self.path.replace(self.target)

        if companion is not None:
            companion.replace(self._manifest_beside)

        sync_folder(self.target.parent)
        shutil.rmtree(self._staging)

    def _put_back(self, staging: Path) -> None:
        """Undoes the first half of an exchange of folders whose second half did not come."""
        if (staging / OLD).exists() and not self.target.exists():
            (staging / OLD).rename(self.target)

    def abort(self) -> None:
        """Removes what was made."""
        self._put_back(self._staging)
        shutil.rmtree(self._staging, ignore_errors=True)


def _leads_somewhere(path: Path) -> bool:
    # A loop of links: Python raises RuntimeError before 3.13, and OSError from then on.
    try:
        return path.exists()
    except (OSError, RuntimeError):
        return False


def _is_running(pid: int) -> bool:
    # Signal 0 is sent to nobody; the system only checks whether it could be. A process of another user is there, too.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True

    return True
