"""The folder beside a target in which its pieces gather, until all of them are there.

.TARGET.packing/plan        digest of the plan that the pieces belong to
.TARGET.packing/data/       pieces that are complete: each was written aside, flushed and renamed
.TARGET.packing/done/       for each of them the lengths and checksums of its files
.TARGET.packing/bad/        of a pack: for each of them what is wrong with its images
.TARGET.packing/making-*/   pieces that are being made, each in a folder of its own
.TARGET.packing/seen-*      shows to machines of a cluster that they see this folder
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from headrace.core.errors import DatasetError
from headrace.core.files.atomic_file import sync_file, sync_folder, write_atomically
from headrace.core.files.file_lock import locked
from headrace.core.process.shortage import check_shortage
from headrace.data.formats.manifest import checksum
from headrace.data.formats.shards import shard_name

MAKING = "making-"
SEEN = "seen-"


def raise_busy(target: str | Path) -> NoReturn:
    """Raises `DatasetError` for a target whose lock another process holds."""
    fix = "wait until it has ended, or choose another target"
    raise DatasetError.about("another pack is writing this target", place=target, found="its lock", fix=fix)


class StagingArea:
    """The place for the pieces of one plan. `suffix`: of their names."""

    def __init__(self, target: Path, digest: str, pieces: int, suffix: str) -> None:
        self.target = target
        self._digest = digest
        self._pieces = pieces
        self._suffix = suffix
        self.path = target.with_name(f".{target.name}.packing")
        self.data = self.path / "data"
        self.done = self.path / "done"

    def locked(self) -> AbstractContextManager[None]:
        """Keeps every other process away from the target. Raises `DatasetError` if one is at it."""
        return locked(self.path / "lock", lambda: raise_busy(self.target))

    def prepare(self) -> list[int]:
        """Returns the pieces that are missing; those of an earlier run of the same plan stay, others are removed."""
        self._remove_unfinished()
        note = self.path / "plan"
        if not self.data.is_dir() or not note.is_file() or note.read_text() != self._digest:
            for folder in (self.data, self.done):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            note.write_text(self._digest)

        missing = []
        for piece in range(self._pieces):
            if not self._is_sound(piece):
                missing.append(piece)

        return missing

    def _is_sound(self, piece: int) -> bool:
        try:
            files = json.loads((self.done / str(piece)).read_text())
            return bool(files) and all([*checksum(self.data / name)] == expected for name, expected in files.items())
        except (OSError, ValueError, AttributeError) as error:
            check_shortage(error, self.done / str(piece), "checking a piece of an earlier run")
            return False

    def file(self, piece: int) -> Path:
        """Returns where a piece lies."""
        return self.data / shard_name(piece, self._suffix)

    def _remove_unfinished(self) -> None:
        """Removes what runs have left that were killed. Whoever still makes a piece of such a run then fails."""
        for left in self.path.glob(f"{MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        for left in self.path.glob(f"{SEEN}*"):
            left.unlink(missing_ok=True)

    def keep(self, piece: int, write: Callable[[Path], None]) -> None:
        """Has `write` make a piece at a path, puts it in place, and notes that it is complete.

        Two processes may make the same piece at a time, where a cluster takes one for dead that is not: each has a
        folder of its own, and what they put in place are the same bytes.
        """
        final = self.file(piece)
        making = Path(tempfile.mkdtemp(prefix=f"{MAKING}{piece}-", dir=self.path))
        try:
            write(making / final.name)
            files = {}
            # The piece, and what belongs to it: flushed elsewhere, so that a kill leaves no half of it in place.
            for path in sorted(making.glob(f"{final.name}*")):
                sync_file(path)
                files[path.name] = checksum(path)
                path.replace(final.with_name(path.name))

            # The piece first, then the note that says it is complete: after a kill in between, the piece is made again.
            sync_folder(final.parent)
            write_atomically(self.done / str(piece), json.dumps(files).encode())
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def remove(self) -> None:
        """Removes the room, once the target is in place."""
        shutil.rmtree(self.path)
