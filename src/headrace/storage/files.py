"""Files and folders, on this machine or elsewhere: what those who open data ask of either, by one name.

A path is a text: a path of this machine, or a URL. Within one `lookup`, a store is asked each thing once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.core.files.regular_files import SIDE_FILE, read_side_file, too_large
from headrace.storage.listing import as_prefix, current, not_found
from headrace.storage.locations import is_url, parse
from headrace.storage.stores.objects import ObjectInfo


def is_folder(path: str) -> bool:
    """Tells whether a path leads to a folder: at a URL, whether objects lie below it."""
    if is_url(path):
        return current().is_folder(path)
    return Path(path).is_dir()


def is_file(path: str) -> bool:
    """Tells whether a path leads to a file: at a URL, whether there is such an object."""
    if is_url(path):
        return current().file(path) is not None
    return Path(path).is_file()


def exists(path: str) -> bool:
    """Tells whether a path leads anywhere; a link that leads nowhere is something, too."""
    if is_url(path):
        return is_file(path) or is_folder(path)
    return os.path.lexists(path)


def size_of(path: str) -> int:
    """Returns the bytes of a file. Raises `FileNotFoundError`."""
    if is_url(path):
        return info_of(path).size
    return Path(path).stat().st_size


def info_of(url: str) -> ObjectInfo:
    """Returns what is known of an object. Raises `DatasetNotFoundError`, which is a `FileNotFoundError`, too."""
    found = current().file(url)
    if found is None:
        raise not_found(url)
    return found


def join(folder: str, name: str) -> str:
    """Returns the path of what lies in a folder."""
    if is_url(folder):
        return f"{folder.rstrip('/')}/{name}"
    return str(Path(folder) / name)


def name_of(path: str) -> str:
    """Returns the last part of a path."""
    if is_url(path):
        return path.rstrip("/").rpartition("/")[2]
    return Path(path).name


def parent_of(path: str) -> str:
    """Returns the folder in which a path lies. That of a whole bucket or server is itself."""
    if is_url(path):
        if not parse(path).key.strip("/"):
            return path
        return path.rstrip("/").rpartition("/")[0]
    return str(Path(path).parent)


def plain_files(folder: str) -> list[str]:
    """Returns the names of the files in a folder, sorted, without hidden ones; empty if it cannot be read."""
    if is_url(folder):
        return _objects_in(folder)

    try:
        with os.scandir(folder) as entries:
            names = []
            for entry in entries:
                if entry.name[0] != "." and entry.is_file():
                    names.append(entry.name)

            return sorted(names)
    except OSError:
        return []


def entries_below(
    root: str,
    is_hidden: Callable[[str], bool] | None = None,
    on_error: Callable[[Path, OSError], None] | None = None,
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields what lies below a folder of this machine, but no folders: each entry with its path relative to the root.

    Links to folders are followed, and each folder is read once: a link to one that is read already, or to one above the
    root, is an error of `errno.ELOOP`. is_hidden: tells of the name of an entry whether it is left out. on_error: is
    called with what is left out since it cannot be listed.
    """
    seen = set()
    for above in Path(root).resolve().parents:
        seen.add(identity_of(above))

    pending = [""]
    # Links come last, so that a folder has the name that it has without them.
    links: list[str] = []
    while pending or links:
        below = pending.pop() if pending else links.pop(0)
        place = Path(root, below)
        try:
            here = identity_of(place)
            if here in seen:
                raise OSError(errno.ELOOP, "a link to a folder that is read already, or lies above", str(place))
            with os.scandir(place) as listed:
                entries = sorted(listed, key=_name_of_entry)
        except OSError as error:
            if on_error is not None:
                on_error(place, error)
            continue

        seen.add(here)
        for entry in entries:
            if is_hidden is not None and is_hidden(entry.name):
                continue
            name = f"{below}/{entry.name}" if below else entry.name
            try:
                is_folder_itself = entry.is_dir()
            except OSError as error:
                if on_error is not None:
                    on_error(Path(entry.path), error)
                continue

            if not is_folder_itself:
                yield name, entry
            elif entry.is_symlink():
                links.append(name)
            else:
                pending.append(name)


def identity_of(folder: Path) -> tuple[int, int]:
    """Returns device and inode: the same for all paths that lead to one folder. Raises `OSError`."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _name_of_entry(entry: os.DirEntry[str]) -> str:
    return entry.name


def names_beginning(folder: str, letters: str) -> list[str]:
    """Returns the names of the files in a folder that begin with some letters, as `plain_files` does.

    In a store, only these are listed, and not the folder, where that can be done.
    """
    names = []
    if is_url(folder):
        for info in current().beginning(join(folder, letters)):
            names.append(info.key.rpartition("/")[2])
    else:
        names = plain_files(folder)

    return sorted(name for name in names if name.startswith(letters) and not name.startswith("."))


def _objects_in(folder: str) -> list[str]:
    begin = len(as_prefix(parse(folder).key))
    names = []
    for info in current().below(folder):
        name = info.key[begin:]
        if name and "/" not in name and not name.startswith("."):
            names.append(name)

    return sorted(names)


def objects_below(folder: str) -> Sequence[tuple[str, ObjectInfo]]:
    """Returns the objects in a folder and its sub-folders, each with its name relative to the folder."""
    begin = len(as_prefix(parse(folder).key))
    found = []
    for info in current().below(folder):
        name = info.key[begin:]
        # Some tools mark a folder by an object of no bytes, whose key ends in a slash.
        if name and not name.endswith("/"):
            found.append((name, info))

    return found


def first_bytes(path: str, count: int = 16) -> bytes:
    """Returns the beginning of a file; empty if it is no file that can be read."""
    if is_url(path):
        return current().head_of(path)[:count]

    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def read_small(path: str, limit: int = SIDE_FILE) -> bytes:
    """Returns all bytes of a file that describes data.

    limit: bytes that it may have. Raises `FormatError` if it has more or is no regular file, and `OSError`.
    """
    if not is_url(path):
        return read_side_file(path, limit)

    found = current().file(path)
    if found is None:
        raise not_found(path)
    if found.size > limit:
        raise too_large(path, found.size, limit)
    if found.size == 0:
        return b""

    location = parse(path)
    return bytes(current().store(location).read(location.key, 0, found.size, found.etag))
