"""What a user may do with a cache: look into it, check it, clear it."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.errors import DatasetNotFoundError, UsageError
from headrace.core.files.file_lock import NoLocks, lock_file
from headrace.storage.cache import layout, whole_records
from headrace.storage.cache.disk_cache import DiskCache
from headrace.storage.cache.folders import HEX, JOBS, WHOLE, Folders
from headrace.storage.cache.marker import BEFORE, LIMIT, MAGIC, MARKER, NUMBER
from headrace.storage.cache.node import Node, job_lives
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import give_up_space, take_file, take_whole

Report = Callable[[int, int], None]
"""Is called with files that are done, and all files."""

CHUNK = 1 << 20


@dataclass
class Contents:
    """What lies in a cache. Bytes are bytes on the disk, with headers."""

    folder: str
    limit: int | None
    """That was given last; None: no limit."""
    complete: int = 0
    """Objects of which all blocks are there."""
    partial: int = 0
    whole_files: int = 0
    blocks: int = 0
    nbytes: int = 0
    other_files: int = 0
    """Files in the cache's folders that are none of its own; they are left alone."""
    by_prefix: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Objects and bytes, by the URL without its last part; those with most bytes first."""
    jobs: list[int] = field(default_factory=list)
    """The processes that opened the cache last, one for each job that uses it now."""

    def add(self, url: str, nbytes: int) -> None:
        """Counts an object."""
        prefix = url.rpartition("/")[0] or url
        objects, before = self.by_prefix.get(prefix, (0, 0))
        self.by_prefix[prefix] = (objects + 1, before + nbytes)
        self.nbytes += nbytes


@dataclass
class Checked:
    """What a check found."""

    files: int = 0
    blocks: int = 0
    nbytes: int = 0
    """Bytes that were read."""
    problems: list[str] = field(default_factory=list)
    """One line for each block or file that was wrong, and was dropped."""


def open_existing(folder: Path) -> tuple[Folders, int]:
    """Opens the folder of a cache for looking, and its marker. Makes nothing.

    Raises `DatasetNotFoundError` if there is no such folder, and `UsageError` if it is not a cache.
    """
    try:
        folders = Folders(folder)
    except OSError as error:
        fix = "name the folder of a cache, or set HEADRACE_CACHE_DIR to it"
        raise DatasetNotFoundError.about("no such cache", place=folder, found=error.strerror, fix=fix) from error

    try:
        marker = folders.open(MARKER, os.O_RDONLY)
    except OSError:
        marker = -1
    if marker >= 0 and os.pread(marker, len(MAGIC), 0) in (MAGIC, BEFORE):
        return folders, marker

    if marker >= 0:
        os.close(marker)
    folders.close()
    expected = f"a folder with a file {MARKER!r} that headrace made"
    fix = "name the folder of a cache; nothing was changed in this one"
    raise UsageError.about("not a cache of headrace", place=folder, expected=expected, fix=fix)


def look(folder: Path, report: Report) -> Contents:
    """Returns what lies in a cache; jobs may use it meanwhile. Raises as `open_existing`, and `OSError`."""
    folders, marker = open_existing(folder)
    try:
        contents = Contents(str(folder), _limit_in(marker))
        files = list(folders.names(*HEX, WHOLE))
        for done, (name, status) in enumerate(files):
            report(done, len(files))
            with contextlib.suppress(FileNotFoundError):
                _count(contents, folders, name, status.st_blocks * 512)

        report(len(files), len(files))
        for name, _ in folders.names(JOBS):
            if job_lives(folders, name):
                contents.jobs.append(_first_number(folders, name))
    finally:
        os.close(marker)
        folders.close()

    by_bytes = sorted(contents.by_prefix.items(), key=lambda item: -item[1][1])
    contents.by_prefix = dict(by_bytes)
    return contents


def _limit_in(marker: int) -> int | None:
    """Returns the limit that was given last."""
    limit = NUMBER.unpack(os.pread(marker, NUMBER.size, LIMIT).ljust(NUMBER.size, b"\0"))[0]
    return limit or None


def _count(contents: Contents, folders: Folders, name: str, nbytes: int) -> None:
    """Adds a file to the contents."""
    if whole_records.RECORD_NAME.fullmatch(name) or layout.NEW_NAME.fullmatch(name.rpartition("/")[2]):
        contents.nbytes += nbytes
        return
    if whole_records.DATA_NAME.fullmatch(name):
        record = _record_of(folders, name)
        if record is not None:
            contents.whole_files += 1
            contents.add(record.url, nbytes)
            return

    if not layout.NAME.fullmatch(name):
        contents.other_files += 1
        return
    file = OpenFile(folders.open(name, os.O_RDONLY))
    head = os.pread(file.fd, layout.HEADER, 0)
    header = layout.parsed(head)
    if header is None:
        # What the next use removes takes its space until then.
        if layout.is_ours(head):
            contents.nbytes += nbytes
        else:
            contents.other_files += 1
        return

    entries = file.entries(header.shape, range(header.shape.blocks))
    present = sum(mark != layout.ABSENT for _, mark in entries)
    contents.add(header.url, nbytes)
    contents.blocks += present
    if present == header.shape.blocks:
        contents.complete += 1
    else:
        contents.partial += 1


def _record_of(folders: Folders, name: str) -> whole_records.WholeRecord | None:
    try:
        file = OpenFile(folders.open(whole_records.record_name_of(name), os.O_RDONLY))
    except FileNotFoundError:
        return None
    return whole_records.read_record(file.fd)


def _first_number(folders: Folders, name: str) -> int:
    """Returns the number in a job's file: of the process that opened the cache last; 0 if there is none."""
    file = OpenFile(folders.open(name, os.O_RDONLY))
    text = os.pread(file.fd, 32, 0).split(b"\n")[0]
    if text.isdigit():
        return int(text)
    return 0


# -- checking ----------------------------------------------------------------------------------------------------------


def check(folder: Path, report: Report) -> Checked:
    """Compares all bytes with their CRCs, and drops what is wrong; jobs may use the cache meanwhile.

    Raises as `open_existing`, and `OSError`.
    """
    folders, marker = open_existing(folder)
    limit = _limit_in(marker)
    os.close(marker)
    folders.close()

    checked = Checked()
    cache = DiskCache(folder, limit)
    try:
        node = cache.node
        files = list(node.folders.names(*HEX, WHOLE))
        for done, (name, _) in enumerate(files):
            report(done, len(files))
            with contextlib.suppress(FileNotFoundError):
                if layout.NAME.fullmatch(name):
                    _check_object(checked, node, name)
                elif whole_records.DATA_NAME.fullmatch(name):
                    _check_whole(checked, node, name)
        report(len(files), len(files))
    finally:
        cache.close()
    return checked


def _check_object(checked: Checked, node: Node, name: str) -> None:
    file = OpenFile(node.open_object(name))
    head = os.pread(file.fd, layout.HEADER, 0)
    if not layout.is_ours(head):
        return

    checked.files += 1
    header = layout.parsed(head)
    if header is None:
        checked.problems.append(f"objects/{name}: damaged header")
        take_file(node, name)
        return

    shape = header.shape
    is_wrong = False
    for number in range(shape.blocks):
        # Each block is looked at by itself: others may come meanwhile.
        entry = file.entry(shape, number)
        if entry[1] == layout.ABSENT:
            continue
        start = shape.start_of(number)
        data = os.pread(file.fd, shape.stop_of(number) - start, shape.data_start + start)
        right = len(data) == shape.stop_of(number) - start and zlib.crc32(data) == entry[0]
        if not right and not file.is_linked():
            return  # it was removed meanwhile

        checked.blocks += 1
        checked.nbytes += len(data)
        if not right:
            checked.problems.append(f"{header.url}: wrong bytes {start:,} to {shape.stop_of(number):,}")
            is_wrong = True

    # As a whole: processes that have seen its blocks would go on with them.
    if is_wrong and take_file(node, name, claimed=True) is None:
        checked.problems[-1] += ", and stays because a process writes into the object"


def _check_whole(checked: Checked, node: Node, name: str) -> None:
    record = _record_of(node.folders, name)
    if record is None:
        return

    checked.files += 1
    crc = 0
    length = 0
    with open(node.open_object(name), "rb") as file:
        while chunk := file.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
            length += len(chunk)

    checked.nbytes += length
    if crc != record.crc or length != record.size:
        checked.problems.append(f"{record.url}: the file is wrong")
        if not take_whole(node, name):
            checked.problems[-1] += ", and stays because a process uses it"


# -- clearing ----------------------------------------------------------------------------------------------------------


def clear(folder: Path, *, force: bool, report: Report) -> int:
    """Removes all files of a cache, and returns how many bytes became free. Other files stay.

    force: also while processes use the cache; they go on without it. Raises `UsageError` if it is in use and `force` is
    not given, further as `open_existing`, and `OSError`.
    """
    folders, marker = open_existing(folder)
    try:
        free = force
        with contextlib.suppress(NoLocks):
            free |= lock_file(marker, exclusive=True)
        if not free:
            fix = "wait for the jobs to end (`headrace cache show` lists them), or give --force"
            raise UsageError.about("the cache is in use", place=folder, fix=fix)
        return _remove_all(folders, report)
    finally:
        os.close(marker)
        folders.close()


def _remove_all(folders: Folders, report: Report) -> int:
    nbytes = 0
    files = list(folders.names(*HEX, WHOLE, JOBS))
    # Records come last: without its record, a whole file is none of the cache's.
    files.sort(key=lambda item: whole_records.RECORD_NAME.fullmatch(item[0]) is not None)
    for done, (name, status) in enumerate(files):
        report(done, len(files))
        with contextlib.suppress(FileNotFoundError):
            if _is_of_the_cache(folders, name):
                _remove(folders, name)
                nbytes += status.st_blocks * 512

    report(len(files), len(files))
    folders.unlink(MARKER)
    folders.remove_empty()
    return nbytes


def _remove(folders: Folders, name: str) -> None:
    """Removes a file. Processes that have an object open see that its blocks are gone."""
    if not layout.NAME.fullmatch(name):
        folders.unlink(name)
        return

    file = OpenFile(folders.open(name, os.O_RDWR))
    header = layout.parsed(os.pread(file.fd, layout.HEADER, 0))
    folders.unlink(name)
    if header is not None:
        give_up_space(file, header.shape)


def _is_of_the_cache(folders: Folders, name: str) -> bool:
    """Tells whether the cache made a file, by its name and by what it holds."""
    folder, _, base = name.rpartition("/")
    if layout.NEW_NAME.fullmatch(base):
        return folder != JOBS
    if folder == JOBS:
        return layout.JOB_NAME.fullmatch(base) is not None
    if whole_records.DATA_NAME.fullmatch(name):
        return _record_of(folders, name) is not None

    file = OpenFile(folders.open(name, os.O_RDONLY))
    if whole_records.RECORD_NAME.fullmatch(name):
        return whole_records.read_record(file.fd) is not None or os.fstat(file.fd).st_size == 0
    head = os.pread(file.fd, layout.HEADER, 0)
    return layout.NAME.fullmatch(name) is not None and layout.is_ours(head)
