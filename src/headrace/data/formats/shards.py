"""Names of the files of a dataset that lies in several: a folder, a pattern, or a range such as `{000..011}`."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import DatasetNotFoundError
from headrace.data.formats.manifest import NAME as MANIFEST
from headrace.data.formats.manifest import files_ending_in, read_manifest
from headrace.data.formats.protocol import Stamped
from headrace.storage.files import (
    entries_below,
    exists,
    info_of,
    is_file,
    is_folder,
    join,
    name_of,
    names_beginning,
    objects_below,
    parent_of,
)
from headrace.storage.listing import RANGE, current
from headrace.storage.locations import is_url
from headrace.storage.stores.objects import ObjectInfo

LARGEST_RANGE = 1_000_000


def shard_name(number: int, suffix: str) -> str:
    """Returns the name of a packed shard."""
    return f"part-{number:05d}{suffix}"


def is_pattern(path: str) -> bool:
    """Tells whether a path stands for several files: a range, or wildcards that are not the name of a file."""
    if not RANGE.search(path):
        return glob.has_magic(path) and not exists(path)
    # A range names objects of a store without a look; here, a file may have such a name.
    return is_url(path) or not exists(path)


def shards_of(path: str, suffixes: tuple[str, ...]) -> list[str]:
    """Returns the files that a path stands for, sorted; for a folder, those in it with one of the suffixes.

    Raises `DatasetNotFoundError` if a file of a range is missing, or there are none.
    """
    if RANGE.search(path) and is_pattern(path):
        files = expanded(path)
        if is_url(path):
            current().look_for(files)

        missing = []
        for file in files:
            if not is_file(file):
                missing.append(file)

        if missing:
            found = f"{len(files) - len(missing)} of {len(files)}; not there: {', '.join(missing[:5])}"
            raise DatasetNotFoundError.about(
                "shards are missing",
                place=path,
                found=found,
                expected="all of them",
                fix="upload what is missing, or correct the range",
            )
        return files

    if is_folder(path):
        files = []
        for name in files_ending_in(path, suffixes):
            files.append(join(path, name))

    elif is_file(path):
        # Before it is taken for a pattern: a name may hold brackets.
        files = [path]
    elif is_url(path):
        files = current().matching(path)
    else:
        files = sorted(_only_files(glob.glob(path)))  # noqa: PTH207 - a pattern

    if not files:
        expected = "a file, a folder or a pattern of files ending in " + " or ".join(suffixes)
        raise DatasetNotFoundError.about(
            "found no files",
            place=path,
            found="nothing",
            expected=expected,
            fix="correct the path, or name the format: open(..., format=...)",
        )

    return files


def matches_of(pattern: str) -> list[str]:
    """Returns the paths or URLs that a pattern stands for, sorted, as far as they are there."""
    if RANGE.search(pattern):
        names = expanded(pattern)
        if is_url(pattern):
            current().look_for(names)
        return [name for name in names if exists(name)]
    if is_url(pattern):
        return current().matching(pattern)
    return sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern


def expanded(path: str) -> list[str]:
    """Returns the names that `{000..011}` stands for; several ranges multiply. Raises `DatasetNotFoundError`."""
    match = RANGE.search(path)
    if match is None:
        return [path]

    first = int(match[1])
    last = int(match[2])
    # A slip of the finger, `{0..10000000000}`, would otherwise take all memory for names.
    if last - first >= LARGEST_RANGE or last < first:
        raise DatasetNotFoundError.about(
            "no such range of files",
            place=path,
            found=match[0],
            expected="{000..011}",
            fix="write the smaller number first, and 1,000,000 files at most",
        )

    # As in a shell: `{000..011}` has three digits in each name, `{0..11}` as many as it needs.
    if match[1].startswith("0"):
        width = len(match[1])
    else:
        width = 0

    begin = path[: match.start()]
    end = path[match.end() :]
    files = []
    for number in range(first, last + 1):
        files += expanded(f"{begin}{number:0{width}d}{end}")

    return files


def stored_objects(url: str) -> list[ObjectInfo]:
    """Returns all objects of data at a URL: one, a folder, or a pattern; sorted."""
    if RANGE.search(url):
        return list(map(info_of, expanded(url)))
    if is_file(url):
        return [info_of(url)]
    if is_folder(url):
        return [info for _, info in objects_below(url)]
    return list(map(info_of, current().matching(url)))


def files_at(url: str) -> tuple[str, list[str]]:
    """Returns the URLs of all objects that make up data, and the folder in which they lie.

    That is one object and its manifest, a folder, a pattern, or all objects whose names begin so.
    """
    if is_pattern(url):
        files = shards_of(url, ())
        return parent_of(files[0]), files
    if is_folder(url):
        return url, [join(url, name) for name, _ in objects_below(url)]

    files = []
    folder = parent_of(url)
    beginning = name_of(url)
    if is_file(url):
        manifest = f"{url}.headrace.json"
        files.append(url)
        if is_file(manifest):
            files.append(manifest)
        return folder, files

    for name in names_beginning(folder, beginning) or _names_beside(url):
        if name.startswith(beginning):
            files.append(join(folder, name))

    return folder, files


def _names_beside(url: str) -> list[str]:
    """Returns the files that a manifest beside them names, where they cannot be listed."""
    manifest = read_manifest(url)
    if manifest is None:
        return []
    return [*manifest.files, f"{name_of(url)}.{MANIFEST}"]


def stored_files(place: str) -> list[str]:
    """Returns all files of data at a path: a file, a folder, a pattern, or a prefix of file names; sorted."""
    if RANGE.search(place) and is_pattern(place):
        return _only_files(expanded(place))

    path = Path(place)
    if path.is_dir():
        return sorted(join(place, name) for name, entry in entries_below(place) if entry.is_file())
    if path.is_file():
        return [place]
    return sorted(glob.glob(place) or glob.glob(f"{glob.escape(place)}*"))  # noqa: PTH207


def beginning_of_files(place: str | Sequence[str]) -> str:
    """Returns how the paths of all files of data begin, links followed. place: as `stored_files` takes it, or files."""
    if not isinstance(place, str):
        return os.path.commonpath([os.path.realpath(file) for file in place])

    # Not by `Path`, which raises where a folder on the way may not be entered. A relative path may still lead there.
    whole = os.path.realpath(place)
    if os.path.isdir(whole):  # noqa: PTH112
        return f"{whole}/"
    if os.path.exists(whole):  # noqa: PTH110
        return whole
    # A pattern, a prefix of names, or a place that cannot be looked at.
    fixed = Path(f"{re.split(r'[*?{[]', place)[0]}x")
    return f"{os.path.realpath(fixed.parent)}/{fixed.name[:-1]}"


def _only_files(paths: Iterable[str]) -> list[str]:
    """Returns those of the paths that are files; not folders, and nothing that is not there."""
    files = []
    for path in paths:
        if Path(path).is_file():
            files.append(path)

    return files


@dataclass(frozen=True)
class FileList:
    """Files of one dataset, in the order in which a user has listed them: paths, or URLs of one store."""

    files: tuple[str, ...]

    @property
    def place(self) -> str:
        """What a user would call them, in messages."""
        if len(self.files) == 1:
            return self.files[0]
        return f"{self.files[0]} and {len(self.files) - 1} more"

    def stamp(self) -> str:
        """Returns a text that changes when one of the files does; see `stamp_of`."""
        return hashlib.sha256("".join(map(stamp_of, self.files)).encode()).hexdigest()


def stamp_of(place: str | Stamped) -> str:
    """Returns a text that changes when the files of data do: their names, lengths and times of change."""
    if isinstance(place, Stamped):
        return place.stamp()

    digest = hashlib.sha256()
    if is_url(place):
        for info in stored_objects(place):
            digest.update(f"{info.key}|{info.size}|{info.etag}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    for file in map(Path, stored_files(place)):
        if file.is_file():
            status = file.stat()
            digest.update(f"{file}|{status.st_size}|{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))

    return digest.hexdigest()
