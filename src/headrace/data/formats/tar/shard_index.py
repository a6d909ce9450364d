"""Where each file of a tar shard lies, sample by sample, from its headers."""

from __future__ import annotations

import io
import logging
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.core.errors import FormatError
from headrace.data.formats.columns import Array
from headrace.data.formats.guards.limits import check_unfolding
from headrace.data.formats.unreadable import unreadable

LOGGER = logging.getLogger("headrace")

RECORD = 512
REGULAR = b"0\x007"
"""Kinds of entries that are plain files: of ustar, of the tar before it, and one that ought to lie in one piece."""

PASSED_OVER = b"5g"
"""Kinds of entries that are no files, and tell of none: folders, and records of pax about the whole archive."""

META = re.compile(rb"__[^/]*__(?:$|/)")
"""Names of what belongs to a shard and to no sample, as the package webdataset has it."""

AT_ONCE = 1024
"""Headers whose checksums are compared at a time."""

LONGEST_NAME = 1 << 16

CELLS = 1 << 22
"""Places in the table of samples x columns that any shard may have; larger tables must not be nearly empty."""

EMPTY = 64
"""How many times as many places as files a larger table may have."""


class Holes(NamedTuple):
    """Where the stored bytes of a file belong; all others are zeros."""

    size: int
    """Bytes of the whole file."""

    blocks: Sequence[tuple[int, int]]
    """Place in the file, and length, of each piece that is stored; they lie one behind the other."""

    def filled(self, stored: Array) -> Array:
        """Returns the whole file. stored: uint8, as many as all pieces have."""
        whole = np.zeros(self.size, np.uint8)
        at = 0
        for start, length in self.blocks:
            whole[start : start + length] = stored[at : at + length]
            at += length

        return whole


@dataclass(frozen=True)
class TarIndex:
    """Samples of one shard.

    names: of each sample, end to end (uint8), with ends [samples + 1]; endings: of all columns, in order of appearance;
    starts, sizes: of each file's data in the shard, bytes [samples, columns]; size -1: the sample has no such file.
    """

    names: Array
    name_ends: Array
    endings: tuple[str, ...]
    starts: Array
    sizes: Array
    holes: Mapping[tuple[int, int], Holes] = field(default_factory=dict)
    """Of files that are stored without theirs, by sample and column: `sizes` has what is stored."""

    without_ending: int = 0
    """Files that are no part of a sample, since nothing says of which column they are. A kept index does not tell."""

    first_without_ending: str = ""

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.names.nbytes + self.name_ends.nbytes + self.starts.nbytes + self.sizes.nbytes


class ShardBytes(Protocol):
    """The bytes of a shard."""

    size: int

    near: int
    """Bytes between headers, on average, up to which they are read in windows."""

    window: int
    """Bytes that are read at a time while headers are walked, if they are near."""

    def pread(self, count: int, start: int) -> bytes | memoryview:
        """Returns up to `count` bytes from byte `start` on; fewer only at the end."""


class LocalBytes:
    """Those of a shard on this machine."""

    near = 4096
    window = 1 << 16

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def pread(self, count: int, start: int) -> bytes:
        return os.pread(self._descriptor, count, start)


def as_text(name: bytes) -> str:
    """Returns a name as Python has names of files."""
    return name.decode("utf-8", "surrogateescape")


class _TarSamples:
    """Puts the files of a sample together: neighbours whose names are the same up to the first dot."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.columns: dict[bytes, int] = {}
        self.files: list[tuple[int, int, int, int]] = []
        self.holes: dict[tuple[int, int], Holes] = {}
        self.prefix = b"/"
        self.seen = 0
        self.without_ending = 0
        self.first_without_ending = b""

    def add(self, name: bytes, start: int, size: int, holes: Holes | None = None) -> None:
        if not name.startswith(self.prefix):
            if META.match(name):
                return
            folder, slash, base = name.rpartition(b"/")
            stem, dot, ending = base.partition(b".")
            if not stem or not ending:
                if stem:
                    self.without_ending += 1
                    self.first_without_ending = self.first_without_ending or name
                return
            self.prefix = folder + slash + stem + dot
            self.seen = 0
            self.names.append(self.prefix[:-1])
        else:
            ending = name[len(self.prefix) :]

        # As the package webdataset has it.
        ending = ending.lower()
        # `seen` has a bit for each column of the sample so far. The same name once more begins another sample.
        column = self.columns.setdefault(ending, len(self.columns))
        if self.seen >> column & 1:
            self.names.append(self.prefix[:-1])
            self.seen = 0

        self.seen |= 1 << column
        self.files.append((len(self.names) - 1, column, start, size))
        if holes is not None:
            self.holes[len(self.names) - 1, column] = holes

    def index(self, place: str) -> TarIndex:
        # The attack: a million small files, each a sample of its own with an ending of its own, are a table of a
        # million times a million places.
        shape = len(self.names), len(self.columns)
        if shape[0] * shape[1] > max(CELLS, EMPTY * len(self.files)):
            found = f"{len(self.files):,} files of {shape[0]:,} samples with {shape[1]:,} different endings"
            what = "the files of a shard do not form samples"
            expected = "nearly the same endings for each sample"
            fix = "rename the files: what follows the first dot of a name is its column"
            raise FormatError.about(what, place=place, found=found, expected=expected, fix=fix)

        starts = np.zeros(shape, np.int64)
        sizes = np.full(shape, -1, np.int64)
        table = np.array(self.files, np.int64).reshape(-1, 4)
        starts[table[:, 0], table[:, 1]] = table[:, 2]
        sizes[table[:, 0], table[:, 1]] = table[:, 3]
        ends = np.cumsum([0, *map(len, self.names)])
        endings = tuple(map(as_text, self.columns))
        names = np.frombuffer(b"".join(self.names), np.uint8)
        first = as_text(self.first_without_ending)
        return TarIndex(names, ends, endings, starts, sizes, self.holes, self.without_ending, first)


def walk_headers(shard: ShardBytes, place: str) -> TarIndex:
    """Returns where the samples of a shard lie, from its headers. Raises `FormatError` if it is damaged.

    Checksums of headers are compared many at a time, since that is quicker.
    """
    length = shard.size
    samples = _TarSamples()
    position = 0
    window = b""
    origin = 0
    count = 1
    headers: list[bytes] = []
    places: list[int] = []
    long_name: bytes | None = None
    while True:
        inner = position - origin
        # Small files lie close together, so that one read brings many headers; between large ones only headers are
        # read.
        if inner <= len(window) - RECORD:
            header = window[inner : inner + RECORD]
        elif position < shard.near * count:
            origin = position
            window = bytes(shard.pread(shard.window, position))
            header = window[:RECORD]
        else:
            header = bytes(shard.pread(RECORD, position))

        if len(header) < RECORD or header[0] == 0:
            _compare(headers, places, place)
            _check_end(header, position, place, length)
            return samples.index(place)

        size = _size(header, place, position)
        count += 1
        headers.append(header)
        places.append(position)
        start = position + RECORD
        if start + size > length:
            _compare(headers, places, place)
            raise _damaged(place, start, f"a file of {size:,} bytes, of which {max(length - start, 0):,} are there")

        # The content is filled up with zeros to a whole record.
        position = start + (size + RECORD - 1) // RECORD * RECORD
        kind = header[156]
        if kind in REGULAR:
            samples.add(long_name or _name(header), start, size)
            long_name = None
        elif kind in PASSED_OVER:
            long_name = None
        else:
            long_name = _long_name(kind, bytes(shard.pread(min(size, LONGEST_NAME), start)), long_name)
            if long_name is None:
                _compare(headers, places, place)
                return _walked_by_tarfile(shard, place)

        if len(headers) == AT_ONCE:
            _compare(headers, places, place)


class _ShardStream(io.RawIOBase):
    """A shard as Python's `tarfile` reads it."""

    def __init__(self, shard: ShardBytes) -> None:
        self._shard = shard
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._shard.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._shard.pread(len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _walked_by_tarfile(shard: ShardBytes, place: str) -> TarIndex:
    """Returns what `walk_headers` does, of a shard with rare entries: holes, links, sizes in records of pax."""
    try:
        stream = io.BufferedReader(_ShardStream(shard))
        with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            members = archive.getmembers()
            end = archive.offset
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise unreadable(place, "tar shard", error) from error

    # `tarfile` takes a damaged header behind the first for the end.
    _check_end(bytes(shard.pread(RECORD, end)), end, place, shard.size)
    samples = _TarSamples()
    by_name: dict[str, tarfile.TarInfo] = {}
    others = []
    stored = unfolded = 0
    for member in members:
        content: tarfile.TarInfo | None = member
        if member.islnk():
            content = by_name.get(member.linkname)
        if content is None or not content.isreg():
            if not member.isdir():
                others.append(member.name)
            continue

        by_name[member.name] = content
        holes = None
        size = content.size
        if content.issparse():
            blocks: list[tuple[int, int]] = list(content.sparse)  # type: ignore[arg-type]
            holes = Holes(content.size, blocks)
            size = sum(count for _, count in blocks)
        if content.offset_data + size > shard.size:
            found = f"a file of {size:,} bytes, which ends after the end of the shard"
            raise _damaged(place, content.offset_data, found)

        stored += size
        unfolded += content.size
        check_unfolding(place, "a shard whose files have holes", unfolded, stored)
        samples.add(member.name.encode("utf-8", "surrogateescape"), content.offset_data, size, holes)

    if others:
        told = "%s: %d of its entries are no files, such as symbolic links, and are passed over; the first is %s"
        LOGGER.warning(told, place, len(others), others[0])
    return samples.index(place)


def _check_end(header: bytes, position: int, place: str, length: int) -> None:
    # An archive ends in two records of zeros. One will do; a file that just stops, after a whole entry, will do as
    # well, since some writers leave the end out.
    if header and header.count(0) == RECORD:
        return

    if header or position == 0 or position > length:
        if len(header) < RECORD:
            found = f"{length:,} bytes: the file was cut off"
        else:
            found = f"a header of {header[:16]!r}"
        raise _damaged(place, position, found)


def _compare(headers: list[bytes], places: list[int], place: str) -> None:
    """Compares the checksums of headers; each is the sum of its bytes, with spaces in place of the checksum."""
    table = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, RECORD)
    sums = table.sum(axis=1, dtype=np.int64) - table[:, 148:156].sum(axis=1, dtype=np.int64) + 8 * 32
    for header, position, found in zip(headers, places, sums.tolist(), strict=True):
        if _number(header[148:156]) != found:
            raise _damaged(place, position, f"a header whose checksum is wrong, that begins with {header[:16]!r}")

    headers.clear()
    places.clear()


def _size(header: bytes, place: str, position: int) -> int:
    # Octal digits, as nearly all are written. From 8 GiB on GNU's tar sets the highest bit, and writes the number in
    # base 256.
    try:
        return int(header[124:135], 8)
    except ValueError:
        if header[124] == 0x80:
            size: int | None = int.from_bytes(header[125:136], "big")
        else:
            size = _number(header[124:136])

    if size is None or size < 0:
        raise _damaged(place, position, f"a size of {header[124:136]!r}")
    return size


def _number(digits: bytes) -> int | None:
    try:
        return int(digits.strip(b" \0") or b"0", 8)
    except ValueError:
        return None


def _name(header: bytes) -> bytes:
    # ustar: a name of 100 bytes, and at 345 a prefix of 155 for longer ones. GNU's own format has times at that place.
    name = header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _long_name(kind: int, content: bytes, known: bytes | None) -> bytes | None:
    """Returns the name that an entry tells of the next one, or has none to tell; None: it is of a rare kind."""
    if kind == ord("L"):
        return content.rstrip(b"\0")
    if kind != ord("x"):
        return None

    records = _pax_records(content)
    if any(key == b"size" or key.startswith(b"GNU.sparse.") for key in records):
        return None
    return records.get(b"path", known or b"")


def _pax_records(extension: bytes) -> dict[bytes, bytes]:
    """Returns what a pax header tells of the next entry: records `LENGTH KEY=VALUE` and a newline."""
    found = {}
    while extension:
        digits, _, rest = extension.partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(extension):
            break
        key, _, value = rest[: int(digits) - len(digits) - 2].partition(b"=")
        found[key] = value
        extension = extension[int(digits) :]

    return found


def _damaged(place: str, position: int, found: str) -> FormatError:
    expected = "a tar archive whose files are all there"
    fix = "restore the shard, or make it again"
    return FormatError.about(
        "a shard is damaged", place=f"{place}, byte {position:,}", found=found, expected=expected, fix=fix
    )
