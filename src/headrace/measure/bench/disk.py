"""The files that stored data lie in."""

from __future__ import annotations

from pathlib import Path

from headrace.data.formats import idx
from headrace.data.formats.manifest import manifest_path
from headrace.data.formats.shards import is_pattern, shards_of


def files_at(place: str) -> list[Path]:
    """Returns the files of the data that a path, a pattern or a stem stands for, the manifest among them.

    Empty if they cannot be told. Raises `DatasetNotFoundError` if a file of a range is missing.
    """
    path = Path(place).expanduser()
    place = str(path)
    if path.is_dir():
        return files_below(path)
    if is_pattern(place):
        return list(map(Path, shards_of(place, ())))

    if path.is_file():
        files = [path]
    elif path.parent.is_dir():
        files = list(map(Path, idx.files_of(place).values()))
    else:
        files = []

    manifest = manifest_path(path)
    if files and manifest.is_file():
        return [*files, manifest]
    return files


def files_below(folder: Path) -> list[Path]:
    """Returns all files of a folder and of those in it, sorted."""
    return sorted(filter(Path.is_file, folder.rglob("*")))


def bytes_of_files(files: list[Path]) -> int:
    """Returns how many bytes files have together."""
    return sum(path.stat().st_size for path in files)
