"""Where computed samples lie: in memory, or in a folder that several processes and ranks share.

    FOLDER/staged.json     what is in it: the layout of samples, and the fingerprint of what made them
    FOLDER/data-DIGEST     the data, in any format that can be written
    FOLDER/lock            held by the process that builds; the others wait for it, and then map what it made

`staged.json` is exchanged in one step once new data are complete, so a cache is whole or not there, also after a kill;
until then the old one stays.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.core.errors import (
    DatasetError,
    DatasetNotFoundError,
    FormatError,
    HeadraceError,
    StaleCacheError,
    UsageError,
)
from headrace.core.files.atomic_file import is_draft, write_atomically
from headrace.core.files.file_lock import locked
from headrace.core.files.regular_files import read_side_file
from headrace.core.process.shortage import check_shortage
from headrace.data.building.pool import On, Report
from headrace.data.building.staging_area import StagingArea
from headrace.data.formats.columns import Block, Ragged
from headrace.data.formats.columns.arrays import ColumnsReader
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import check_holds, format_named, open_reader
from headrace.data.staged.build import BuildJob, assemble, compute, into_memory
from headrace.data.staged.fingerprint import Fingerprint
from headrace.data.staged.layout import Branch, Node, from_json, schema_of, to_json

LOGGER = logging.getLogger("headrace")
NOTE, LOCK, DATA, VERSION = "staged.json", "lock", "data-", 1
OURS = re.compile(r"\.?data-[0-9a-f]{16}(\..*)?")
"""Names of data, and of what is around them while they are made."""

ANEW = "delete the folder: headrace then builds the cache again"

Stale = Literal["error", "rebuild"]


@dataclass(frozen=True)
class Cached:
    """Computed samples. `reader` is None if there are none."""

    node: Node
    reader: Reader | None
    length: int

    @property
    def schema(self) -> Schema:
        """The columns that hold them."""
        return schema_of(self.node)


@dataclass(frozen=True)
class CacheNote:
    """What `staged.json` says."""

    data: str
    format: str
    length: int
    node: Node
    fingerprint: Fingerprint


NOTHING = Branch("dict", (), ())


def in_memory(work: BuildJob, seconds: float, report: Report, on: On = "local") -> Cached:
    """Computes samples into the memory of this process. Raises what the steps raise."""
    if not work.length:
        return Cached(NOTHING, None, 0)
    columns = into_memory(compute(work, range(work.pieces), seconds, "a cache in memory", report, on))
    return cached_block(columns.node, columns.block, columns.count)


def cached_block(node: Node, block: Block, length: int) -> Cached:
    """Returns columns in memory as computed samples."""
    for column in block.columns.values():
        if isinstance(column, Ragged):
            values = column.values
        else:
            values = column

        # Samples are views: a step that changes one in place would change it for all epochs.
        values.flags.writeable = False

    # A partial, not a lambda: it is pickled together with the columns that it returns.
    load: Any = functools.partial(dict, block.columns)
    return Cached(node, ColumnsReader("memory", "a cache in memory", block.schema, length, load), length)


class Folder:
    """A cache on the disk."""

    def __init__(self, path: Path, format: str, fingerprint: Fingerprint, stale: Stale, on: On = "local") -> None:
        self.path = path
        self._format = format
        self._fingerprint = fingerprint
        self._stale = stale
        self._on: On = on
        self._said = False

    def opened(self) -> Cached | None:
        """Returns what is there, if it is what is wanted; None if there is nothing, or if it is to be built anew.

        Raises `StaleCacheError` for anything else, `FormatError` if it is damaged, `DatasetError` if it cannot be read.
        """
        try:
            return self._opened()
        except FormatError as error:
            if self._stale == "error":
                raise
            self._say(str(error).splitlines()[0])
            return None
        except OSError as error:
            if isinstance(error, HeadraceError):
                raise
            check_shortage(error, error.filename or self.path, "opening a cache")
            raise self._disk_error("a cache cannot be opened", error, "choose another folder") from error

    def _opened(self) -> Cached | None:
        note = read_note(self.path)
        if note is None:
            self._check_free()
            return None

        changes = self._fingerprint.changes_since(note.fingerprint)
        if note.format != self._format:
            changes.append(f"the format was {note.format}, is {self._format}")
        if not changes:
            self._tidy(note)
            return self._open(note)

        if self._stale == "error":
            raise StaleCacheError.about(
                "a cache is out of date",
                place=self.path,
                found="\n            ".join(changes[:12] + ["..."] * (len(changes) > 12)),
                expected="a cache of these data and steps",
                fix='undo the change, delete the folder, choose another, or have it rebuilt: stale="rebuild"',
            )

        self._say("; ".join(changes))
        return None

    def _say(self, why: str) -> None:
        if not self._said:
            LOGGER.warning("headrace: the cache %s is rebuilt: %s", self.path, why)
            self._said = True

    def _open(self, note: CacheNote) -> Cached:
        data = self.path / note.data
        try:
            if note.length or data.exists():
                reader = open_reader(data, format=note.format)
            else:
                reader = None
        except (DatasetNotFoundError, FormatError) as error:
            lines = []
            for line in str(error).splitlines():
                if "fix:" not in line:
                    lines.append(line.strip())

            raise FormatError.about("a cache is damaged", place=data, found="; ".join(lines), fix=ANEW) from error

        if reader is not None and (len(reader) != note.length or not _holds(reader, note.node)):
            found = f"{len(reader):,} samples of {_listed(reader.schema)}"
            expected = f"{note.length:,} samples of {_listed(schema_of(note.node))}"
            raise FormatError.about("a cache is damaged", place=data, found=found, expected=expected, fix=ANEW)

        return Cached(note.node, reader, note.length)

    def _check_free(self) -> None:
        # A build removes what it does not know: never in a folder with files of the user's.
        others = []
        # One look: another process may make the folder between two.
        try:
            for entry in self.path.iterdir():
                if not _is_ours(entry.name):
                    others.append(entry.name)
        except FileNotFoundError:
            if self.path.is_symlink():
                others.append(self.path.name)
        except NotADirectoryError:
            others.append(self.path.name)

        if others:
            shown = ", ".join(sorted(others)[:3])
            if len(others) > 3:
                shown += " ..."

            found = f"{shown}, which is no cache"
            fix = "choose another folder, or remove what is there"
            raise UsageError.about("there is something already", place=self.path, found=found, fix=fix)

    def build(self, work: BuildJob, seconds: float, report: Report) -> Cached:
        """Computes samples into the folder; if another process is at it, waits for it, and opens what it made.

        Raises what the steps raise, `DatasetError` if the disk is full or cannot be written, and as `opened`.
        """
        try:
            with locked(self.path / LOCK, self._say_it_waits):
                return self.opened() or self._build(work, seconds, report)
        except OSError as error:
            if isinstance(error, HeadraceError) or getattr(error, "of_a_step", False):
                raise
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            if full:
                fix = "make room"
            else:
                fix = "choose a folder that can be written"

            fix += ", and run the same again: what is computed so far is kept"
            raise self._disk_error("a cache could not be built", error, fix) from error

    def _say_it_waits(self) -> None:
        LOGGER.warning("headrace: another process is building the cache %s; waiting for it", self.path)

    def _disk_error(self, what: str, error: OSError, fix: str) -> DatasetError:
        if error.filename:
            which = f": {error.filename}"
        else:
            which = ""

        found = f"{error.strerror or error}" + which
        return DatasetError.about(what, place=self.path, found=found, fix=fix)

    def _build(self, work: BuildJob, seconds: float, report: Report) -> Cached:
        if work.node is not None:
            check_holds(self._format, schema_of(work.node), self.path)

        name = DATA + hashlib.blake2b(f"{self._fingerprint.digest} {self._format}".encode(), digest_size=8).hexdigest()
        target = self.path / name
        room = StagingArea(target, f"{self._fingerprint.digest} {work.length} {work.piece}", work.pieces, ".arrow")
        self._remove_others(room.path.name, self._data_now())
        node: Node = NOTHING
        if work.length:
            missing = room.prepare()
            work.staging = room
            compute(work, missing, seconds, self.path, report, self._on)
            node = assemble(work, room, target, self._format)

        note = CacheNote(name, self._format, work.length, node, self._fingerprint)
        write_note(self.path, note)
        self._remove_others("", name)
        return self._open(note)

    def _tidy(self, note: CacheNote) -> None:
        """Removes what a build has left that was killed when its data were in place already."""
        left = []
        for entry in self.path.iterdir():
            if OURS.fullmatch(entry.name) and not entry.name.startswith(note.data):
                left.append(entry.name)

        if not left:
            return

        # Whoever builds holds the lock, and what is left may be what it is writing: then nothing is removed. With the
        # lock, the note is read again, since another process may have put new data in place.
        with contextlib.suppress(OSError), locked(self.path / LOCK, _give_up):
            if now := self._data_now():
                self._remove_others(now)

    def _data_now(self) -> str:
        """Returns the name of the data that the cache has until new ones are complete; empty without."""
        try:
            note = read_note(self.path)
        except FormatError:
            return ""

        if note is None:
            return ""
        return note.data

    def _remove_others(self, *names: str) -> None:
        """Removes data that nothing points to: of an older cache, or of a build that was given up."""
        kept = []
        for name in filter(None, names):
            kept += [name, f".{name}.partial"]

        for entry in self.path.iterdir():
            if OURS.fullmatch(entry.name) and not entry.name.startswith(tuple(kept)):
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()


def _listed(schema: Schema) -> str:
    return ", ".join(f"{field.name} ({field})" for field in schema)


def _holds(reader: Reader, node: Node) -> bool:
    """Tells whether stored data have the columns of a layout; formats of text may hold numbers in wider types."""
    if set(schema_of(node).names) != set(reader.schema.names):
        return False

    for wanted in schema_of(node):
        have = reader.schema[wanted.name]
        if have.kind != wanted.kind or have.shape != wanted.shape:
            return False

    return True


def _give_up() -> None:
    raise BlockingIOError


def _is_ours(name: str) -> bool:
    # Another process may write the note at this moment.
    return name in (NOTE, LOCK, f".{NOTE}") or is_draft(name, NOTE) or OURS.fullmatch(name) is not None


def write_note(folder: Path, note: CacheNote) -> None:
    """Puts the description of a cache into place, in one step."""
    plain = {
        "headrace": VERSION, "data": note.data, "format": note.format, "length": note.length,
        "layout": to_json(note.node), "parts": note.fingerprint.parts, "libraries": note.fingerprint.libraries,
    }  # fmt: skip
    # The data are on the disk by now. The note points to them, so it comes last: a kill anywhere leaves the old note
    # with the old data.
    write_atomically(folder / NOTE, (json.dumps(plain, indent=1) + "\n").encode(), durable=True)


def read_note(folder: Path) -> CacheNote | None:
    """Returns the description of a cache; None if there is none. Raises `FormatError` if it is damaged."""
    path = folder / NOTE
    try:
        text = read_side_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None

    try:
        plain = json.loads(text)
        if plain["headrace"] != VERSION:
            raise ValueError(f"version {plain['headrace']!r}")
        fingerprint = Fingerprint(dict(plain["parts"]), dict(plain["libraries"]))
        data = str(plain["data"])
        if not OURS.fullmatch(data) or "/" in data or "\\" in data:
            raise ValueError(f"data in {data!r}")
        if type(plain["length"]) is not int or plain["length"] < 0:
            raise ValueError(f"a length of {plain['length']!r}")
        format_named(plain["format"])
        return CacheNote(data, plain["format"], plain["length"], from_json(plain["layout"], path), fingerprint)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        lines = str(error).splitlines() or [""]
        found = f"{type(error).__name__}: {lines[0]}"
        fix = ANEW
        raise FormatError.about("the description of a cache is damaged", place=path, found=found, fix=fix) from error
