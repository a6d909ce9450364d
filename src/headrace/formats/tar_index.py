"""Where each file of a tar shard lies, sample by sample, from its headers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from headrace.core.errors import FormatError, explain
from headrace.formats.columns import Array

RECORD = 512
REGULAR = b"0\0"
WINDOW = 1 << 16
"""Bytes that are read at a time while headers are walked, if the files are small."""

LONGEST_NAME = 1 << 16


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

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self.starts)


def index_of(file: str) -> TarIndex:
    """Walks the headers of a shard. Raises `FormatError` if it is damaged; a shard that was cut off is."""
    names, ends = bytearray(), [0]
    columns: dict[str, int] = {}
    samples: list[dict[int, tuple[int, int]]] = []
    current: bytes | None = None
    with Path(file).open("rb", buffering=0) as stream:
        for name, start, size in members(stream, file):
            folder, _, base = name.rpartition(b"/")
            stem, _, ending = base.partition(b".")
            if not stem or not ending or stem.startswith(b"."):
                continue
            key = folder + b"/" + stem if folder else stem
            column = columns.setdefault(ending.decode("utf-8", "surrogateescape"), len(columns))
            if key != current or column in samples[-1]:
                current = key
                samples.append({})
                names += key
                ends.append(len(names))
            samples[-1][column] = start, size
    starts = np.zeros((len(samples), len(columns)), np.int64)
    sizes = np.full((len(samples), len(columns)), -1, np.int64)
    for number, sample in enumerate(samples):
        for column, (start, size) in sample.items():
            starts[number, column], sizes[number, column] = start, size
    return TarIndex(np.frombuffer(bytes(names), np.uint8), np.array(ends), tuple(columns), starts, sizes)


def members(stream: IO[bytes], place: str) -> Iterator[tuple[bytes, int, int]]:
    """Yields (name, start of the data, size) of each regular file. Raises `FormatError`."""
    length = os.fstat(stream.fileno()).st_size
    position, window, origin = 0, b"", 0
    long_name: bytes | None = None
    while True:
        inner = position - origin
        if not (0 <= inner and inner + RECORD <= len(window)):
            origin, inner = position, 0
            window = os.pread(stream.fileno(), WINDOW, position)
        header = window[inner : inner + RECORD]
        if len(header) < RECORD:
            if position == 0 or header:
                raise _damaged(place, position, f"{length:,} bytes: the file was cut off")
            return
        if header[0] == 0 and header.count(0) == RECORD:
            return
        size = _size(header, place, position)
        start = position + RECORD
        position = start + -(-size // RECORD) * RECORD
        if start + size > length:
            raise _damaged(place, start, f"a file of {size:,} bytes, of which {max(length - start, 0):,} are there")
        kind = header[156:157]
        if kind in (b"L", b"x"):
            if size > LONGEST_NAME:
                raise _damaged(place, start, f"a name of {size:,} bytes")
            extension = os.pread(stream.fileno(), size, start)
            long_name = extension.rstrip(b"\0") if kind == b"L" else _pax_path(extension) or long_name
            continue
        name, long_name = long_name or _name(header), None
        if kind in (b"0", b"\0", b"7"):
            yield name, start, size


def _size(header: bytes, place: str, position: int) -> int:
    checksum = _number(header[148:156])
    if checksum is None or checksum != sum(header) - sum(header[148:156]) + 8 * 32:
        raise _damaged(place, position, f"a header whose checksum is wrong, that begins with {header[:16]!r}")
    size = int.from_bytes(header[125:136], "big") if header[124] == 0x80 else _number(header[124:136])
    if size is None:
        raise _damaged(place, position, f"a size of {header[124:136]!r}")
    return size


def _number(digits: bytes) -> int | None:
    try:
        return int(digits.strip(b" \0") or b"0", 8)
    except ValueError:
        return None


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_path(extension: bytes) -> bytes | None:
    """Returns the path that a pax header gives: records `LENGTH KEY=VALUE` and a newline."""
    while extension:
        digits, _, rest = extension.partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(extension):
            return None
        record = rest[: int(digits) - len(digits) - 2]
        if record.startswith(b"path="):
            return record[5:]
        extension = extension[int(digits) :]
    return None


def _damaged(place: str, position: int, found: str) -> FormatError:
    expected = "a tar archive whose files are all there"
    cure = "restore the shard, or make it again"
    return FormatError(
        explain("a shard is damaged", place=f"{place}, byte {position:,}", found=found, expected=expected, cure=cure)
    )
