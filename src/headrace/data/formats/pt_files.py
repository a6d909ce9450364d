"""A folder with one `.pt` file per sample: a dictionary of tensors, numbers and strings, or a tensor alone (`data`).

Files are read with `torch.load(weights_only=True)`, which executes nothing. With `trust=True` those are read too that
need more than that: trust whoever wrote them.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, BinaryIO

import numpy as np
import torch

from headrace.core.errors import FormatError
from headrace.core.randomness.counter_based import spread
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block, Column, Keys, SampleOrigin, array_of, column_from, exactly, field_of
from headrace.data.formats.columns.schema import NUMBERS, Field, Schema
from headrace.data.formats.guards.limits import check_unfolding
from headrace.data.formats.manifest import commit_with_manifest, files_ending_in, read_manifest
from headrace.data.formats.protocol import Names, Reader, Writer, even_blocks
from headrace.data.formats.sample_files import LocalSampleFiles, RemoteSampleFiles, SampleFiles
from headrace.data.formats.unreadable import unreadable
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.files import info_of, is_folder, join
from headrace.storage.locations import is_url

NAME = "pt"
TITLE = "folder of .pt files, one a sample"
SUFFIXES = (".pt", ".pth")
LOOKED_AT = 16
"""Samples from which the columns are guessed."""

DIRECTORY_END = struct.Struct("<12xII2x")
"""The end of a .zip: length and place of its directory."""

ENTRY = struct.Struct("<10xH12xIHHH12x")
"""Of an entry of the directory: method, length of the content, of the name, of extras and of a comment."""

AT_END = 1 << 14
"""Bytes at the end of a file that are read at once: they hold the directory of nearly all."""

FAILURES = (RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError, OverflowError,
            MemoryError, pickle.UnpicklingError, zipfile.BadZipFile, UnicodeDecodeError, AssertionError,
            struct.error)  # fmt: skip


WIDE = 0xFFFFFFFF
"""Stands for a number that is written elsewhere, since it needs 64 bits."""

STORED = 0
"""The method of a member that is not compressed: it takes no more than its file."""

ENDLESS = 1 << 62
"""A size above every limit: of a member that hides its own, and of a list that holds itself."""


def claims(path: str) -> bool:
    return is_folder(path) and bool(files_ending_in(path, SUFFIXES))


def refusal(field: Field) -> str | None:
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    names = files_ending_in(path, SUFFIXES)
    manifest = read_manifest(path, NAME)
    if manifest is not None:
        if len(names) != manifest.length:
            found = f"{len(names):,} files"
            raise FormatError.about(
                "files are missing",
                place=path,
                found=found,
                expected=f"{manifest.length:,}",
                fix="copy the data again, or pack them again",
            )
        return PtReader(path, _sample_files(path, names), manifest.schema, trust)

    if not names:
        raise FormatError.about(
            "found no .pt files",
            place=path,
            found="none",
            expected="one a sample",
            fix="correct the path, or pack the data again",
        )

    files = _sample_files(path, names)
    samples: list[dict[str, Any]] = []
    looked_at = spread(len(names), LOOKED_AT).tolist()
    for number, data in zip(looked_at, files.read(looked_at), strict=True):
        file = files.place(number)
        sample = _read(file, data, trust)
        if columns is not None and set(columns) <= set(sample):
            sample = {name: sample[name] for name in columns}
        if samples and list(sample) != list(samples[0]):
            found = f"keys {list(sample)}"
            raise FormatError.about(
                "samples differ",
                place=file,
                found=found,
                expected=f"{list(samples[0])}",
                fix="save all samples with the same entries, or open with columns=",
            )
        samples.append(sample)

    fields = []
    for key in samples[0]:
        values = list(map(itemgetter(key), samples))
        fields.append(field_of(key, values, path))

    return PtReader(path, files, Schema(tuple(fields)), trust)


def _sample_files(path: str, names: Sequence[str]) -> SampleFiles:
    if not is_url(path):
        return LocalSampleFiles(path, names)

    objects = []
    for name in names:
        objects.append((name, info_of(join(path, name))))

    return RemoteSampleFiles(path, objects)


def _read(file: str, data: bytes | memoryview, trust: bool) -> dict[str, Any]:
    """Returns the columns of a sample from all bytes of its file. Raises `FormatError` and `MachineError`."""
    stream = io.BytesIO(data)
    try:
        if not trust:
            _check_packed(file, stream, len(data))
            stream.seek(0)

        sample = _columns_of(torch.load(stream, map_location="cpu", weights_only=not trust))
        if not trust:
            check_unfolding(file, "a file", sum(map(_bytes_of, sample.values())), len(data))
        return sample
    except FAILURES as error:
        if isinstance(error, FormatError):
            raise
        fix = "restore the file; if you trust the author and it holds more than tensors, open with trust=True"
        raise unreadable(file, ".pt file", error, fix) from error
    except OSError as error:
        if error.filename is None:
            raise unreadable(file, ".pt file", error) from error
        raise


def _columns_of(sample: object) -> dict[str, Any]:
    """Returns the columns of what a file holds: by the keys of a dictionary, or the places in a tuple."""
    if isinstance(sample, Mapping) and sample and all(isinstance(key, str) for key in sample):
        return dict(sample)

    # A list of nothing but numbers is one array; with a tensor or a string among its entries it is a sample in parts.
    if isinstance(sample, (tuple, list)) and any(isinstance(part, (torch.Tensor, str)) for part in sample):
        columns = {}
        for number, part in enumerate(sample):
            columns[str(number)] = part
        return columns

    return {"data": sample}


def _check_packed(file: str, stream: BinaryIO, size: int) -> None:
    """Raises `FormatError` if a file is an archive, compressed as `torch.save` makes none.

    Looks at its end only: the directory of a .zip lies there.
    """
    check_unfolding(file, "an archive", _unpacked_size(_directory(stream, size)), size)


def _directory(stream: BinaryIO, size: int) -> bytes:
    """Returns the directory of a .zip of `size` bytes; nothing of a file that is none, as `torch.save` made before 1.6.

    Raises `ValueError` and `struct.error` where it makes no sense. Layout: PKWARE's APPNOTE, 4.3.
    """
    start = stream.seek(max(size - AT_END, 0))
    tail = stream.read(AT_END)
    end = tail.rfind(b"PK\5\6", 0, max(len(tail) + 4 - DIRECTORY_END.size, 0))
    if end < 0:
        stream.seek(0)
        if stream.read(2) == b"PK":
            raise ValueError("an archive without a directory at its end")
        return b""

    length, first = DIRECTORY_END.unpack_from(tail, end)
    # In front of the end may lie a locator (4.3.15), which leads to an end with numbers of 64 bits (4.3.14). Were the
    # two ends allowed to differ, this check might read one directory, and torch the other.
    if tail[max(end - 20, 0) : end].startswith(b"PK\6\7"):
        stream.seek(struct.unpack_from("<Q", tail, end - 12)[0])
        wide = struct.unpack("<QQ", stream.read(56)[40:])
        if first != WIDE and wide != (length, first):
            raise ValueError("an archive with two directories")
        length, first = wide

    stream.seek(first)
    if first >= start:
        return tail[first - start : first - start + length]
    return stream.read(length)


def _unpacked_size(directory: bytes) -> int:
    """Returns the bytes that the compressed members of a .zip take once they are unpacked, as its directory says."""
    total = at = 0
    while at + ENTRY.size <= len(directory):
        method, size, name, extra, comment = ENTRY.unpack_from(directory, at)
        if method != STORED and size == WIDE:
            # The size is in a further field, which is not read: no honest member that is compressed needs one.
            total += ENDLESS
        elif method != STORED:
            total += size

        at += ENTRY.size + name + extra + comment

    return total


def _bytes_of(value: object) -> int:
    """Returns the bytes that a value takes as an array: a tensor may repeat its own, lists hold one list many times."""
    if isinstance(value, (list, tuple)):
        return 8 * _entries(value, {})
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    return 0


def _entries(value: object, known: dict[int, int]) -> int:
    """Returns how many numbers nested lists stand for. `known`: those counted already; one within itself is endless."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if not isinstance(value, (list, tuple)):
        return 1
    if not value or not isinstance(value[0], (list, tuple, torch.Tensor)):
        # NumPy refuses lists behind numbers, so that the first entry tells of all.
        return len(value)

    # The attack: ten lists, each of which holds the one before it ten times, are a few bytes of pickle and ten thousand
    # million numbers. A list counts once, however often it comes.
    if id(value) not in known:
        known[id(value)] = ENDLESS
        total = 0
        for entry in value:
            total += _entries(entry, known)
        known[id(value)] = total

    return known[id(value)]


class PtReader:
    """Reads one file a sample."""

    format = NAME

    def __init__(self, path: str, files: SampleFiles, schema: Schema, trust: bool) -> None:
        self.place = path
        self.schema = schema
        self._files = files
        self._trust = trust

    def __len__(self) -> int:
        return len(self._files.names)

    def column(self, name: str) -> Column | None:
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        schema = self.schema.only(names)
        values: dict[str, list[Any]] = defaultdict(list)
        wanted = keys.tolist()
        for key, data in zip(wanted, self._files.read(wanted), strict=True):
            file = self._files.place(key)
            sample = _read(file, data, self._trust)
            for field in schema:
                values[field.name].append(_value(field, sample, file))

        columns = {}
        for field in schema:
            columns[field.name] = column_from(field, values[field.name])

        return Block(schema, columns, SampleOrigin(self._place_of, keys))

    def path_of_sample(self, key: int) -> str:
        return self._files.place(key)

    def _place_of(self, key: Any, column: str) -> str:
        return f"{self._files.place(int(key))}, column {column!r}"

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        return self._files.ranges(keys.tolist())

    def blocks(self) -> Sequence[range]:
        return even_blocks(len(self), 64)


def _value(field: Field, sample: Mapping[str, Any], file: str) -> Any:
    value = sample.get(field.name)
    if isinstance(value, torch.Tensor):
        value = array_of(value, field.name, file)

    if field.kind == "bytes" and isinstance(value, np.ndarray):
        value = value.tobytes()

    if field.kind in ("bytes", "text"):
        wanted: type
        if field.kind == "bytes":
            wanted = bytes
        else:
            wanted = str

        if isinstance(value, wanted):
            return value
        raise _unlike(field, type(value).__name__, file)

    array = np.asarray(value)
    if value is None or array.dtype not in NUMBERS:
        raise _unlike(field, type(value).__name__, file)
    if not _fits(field, array.shape):
        raise _unlike(field, f"{array.dtype} of shape {list(array.shape)}", file)
    try:
        return exactly(array, field.dtype)
    except ValueError as error:
        raise _unlike(field, str(error), file) from error


def _unlike(field: Field, found: str, file: str) -> FormatError:
    return FormatError.about(
        f"column {field.name!r} of a sample differs",
        place=file,
        found=found,
        expected=str(field),
        fix="leave the column out with columns=, or make the file again",
    )


def _fits(field: Field, shape: tuple[int, ...]) -> bool:
    if field.kind == "fixed":
        return shape == field.shape
    return shape[1:] == field.shape and len(shape) > 0


class _PtWriter:
    def __init__(self, path: str, schema: Schema) -> None:
        self._schema = schema
        self._target = AtomicTarget(path, folder=True)
        self._length = 0

    def append(self, block: Block) -> None:
        for row in block:
            sample = {}
            for name, value in row.items():
                sample[name] = _stored(value)

            with (self._target.path / f"{self._length:09d}.pt").open("wb") as file:
                torch.save(sample, file)
            self._length += 1

    def seal(self) -> None:
        commit_with_manifest(self._target, NAME, self._length, self._schema)

    def abort(self) -> None:
        self._target.abort()


def _stored(value: object) -> object:
    if isinstance(value, bytes):
        if value:
            return torch.frombuffer(bytearray(value), dtype=torch.uint8)
        return torch.empty(0, dtype=torch.uint8)

    if isinstance(value, (np.ndarray, np.generic)):
        return torch.from_numpy(np.array(value))
    return value


def open_writer(path: str, schema: Schema) -> Writer:
    return _PtWriter(path, schema)
