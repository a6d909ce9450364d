"""IDX, the format of the MNIST family: one array a file, `PREFIX-COLUMNs-idxN-TYPE`, gzipped or not.

A dataset is named by its prefix: `folder/train` is `folder/train-images-idx3-ubyte.gz` and its neighbour
`folder/train-labels-...`; a folder that holds one prefix, or a single file, will do as well. Format (described at
http://yann.lecun.com/exdb/mnist): two zero bytes, type, number of dimensions, each length as a big-endian 32-bit
number, then the values.
"""

from __future__ import annotations

import functools
import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import DatasetNotFoundError, FormatError
from headrace.data.formats.columns import Array, Column
from headrace.data.formats.columns.arrays import ColumnsReader, columns_from, length_of
from headrace.data.formats.columns.arrays_writer import ArraysWriter
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.remote_arrays import Pieces, StoredArray
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.fetched_whole import NotByRanges
from headrace.data.formats.guards.limits import check_unfolding
from headrace.data.formats.manifest import check_size, known_schema, plain_files, read_manifest
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.stored_arrays import NamedArray, open_arrays
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import is_file, is_folder, join, name_of, names_beginning, parent_of
from headrace.storage.locations import is_url
from headrace.storage.remote_files import RemoteFiles, read_ranges

NAME = "idx"
TITLE = "IDX files, as MNIST"
TYPES = {0x08: ("ubyte", ">u1"), 0x09: ("byte", ">i1"), 0x0B: ("short", ">i2"), 0x0C: ("int", ">i4"),
         0x0D: ("float", ">f4"), 0x0E: ("double", ">f8")}  # fmt: skip
CODES = {np.dtype(code).newbyteorder("="): (number, word) for number, (word, code) in TYPES.items()}
FILE = re.compile(r"(?:(?P<prefix>.*)-)?(?P<column>[^-]+?)[-.]idx(?P<dims>\d)-(?P<type>[a-z]+)(?P<gz>\.gz)?$")
SINGULAR = {"images": "image", "labels": "label"}
PLURAL = {"image": "images", "label": "labels"}

LONGEST_HEADER = 4 + 4 * 255
"""Bytes of a header with as many dimensions as its one byte for them can count."""


def files_of(path: str) -> dict[str, str]:
    """Returns the files of a dataset by column. Raises `FormatError` if a folder holds several datasets."""
    if is_file(path):
        match = FILE.match(name_of(path))
        if match:
            name = match["column"]
        else:
            name = "data"
        return {SINGULAR.get(name, name): path}

    if is_folder(path):
        folder = path
        prefix = None
    else:
        folder = parent_of(path)
        prefix = name_of(path)

    if prefix is None:
        names = plain_files(folder)
    else:
        names = names_beginning(folder, f"{prefix}-")

    found: dict[str, dict[str, str]] = {}
    for name in names:
        if match := FILE.match(name):
            column = SINGULAR.get(match["column"], match["column"])
            found.setdefault(match["prefix"] or "", {}).setdefault(column, join(folder, name))

    if prefix is None and len(found) > 1:
        choices = [join(folder, name) for name in sorted(found)]
        fix = f"open one of them: {', '.join(choices)}"
        raise FormatError.about("several datasets in one folder", place=path, found=", ".join(found), fix=fix)

    if prefix is None:
        return next(iter(found.values()), {})
    return found.get(prefix, {})


def claims(path: str) -> bool:
    if is_file(path):
        return FILE.match(name_of(path)) is not None

    if is_folder(path):
        return any(FILE.match(name) for name in plain_files(path))

    prefix = name_of(path)
    for name in names_beginning(parent_of(path), f"{prefix}-"):
        match = FILE.match(name)
        if match and match["prefix"] == prefix:
            return True

    return False


def refusal(field: Field) -> str | None:
    if field.kind != "fixed" or field.dtype not in CODES:
        return "IDX holds arrays of uint8, int8, int16, int32, float32 and float64, of one shape"

    match = FILE.match(f"{field.name}-idx1-ubyte")
    plain = (
        match is not None
        and match["column"] == field.name
        and not set("/\\\0") & set(field.name)
        and field.name[0] != "."
    )
    if plain and field.name not in SINGULAR:
        return None
    return "its name holds what has a meaning in names of IDX files"


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest = read_manifest(path, NAME)
    files = files_of(path)
    if not files:
        expected = f"{path}-images-idx3-ubyte.gz or a file named like it"
        raise DatasetNotFoundError.about(
            "found no IDX files",
            place=path,
            found="nothing",
            expected=expected,
            fix="name a folder, a file, or what the names of its files begin with",
        )

    if manifest is not None:
        for file in files.values():
            check_size(manifest, name_of(file), file)

    if is_url(path):
        return _open_stored(path, files, known_schema(manifest))

    # The headers say all there is to know so far: one zero stands in for each array, and nothing is unpacked yet.
    arrays = {}
    local = {name: Path(file) for name, file in files.items()}
    for name, (dtype, shape) in _headers(local, trust).items():
        arrays[name] = np.broadcast_to(np.zeros((), dtype), shape)

    schema, columns = columns_from(arrays, path, known_schema(manifest))
    return ColumnsReader(NAME, path, schema, length_of(columns), functools.partial(_load, local, path, schema, trust))


def _open_stored(url: str, urls: dict[str, str], known: Schema | None) -> Reader:
    """Opens files in a store, of which the headers are read. Raises `NotByRanges` for those that are compressed."""
    if any(file.endswith(".gz") for file in urls.values()):
        raise NotByRanges

    files = RemoteFiles.at(list(urls.values()))
    addresses = Addresses(files)
    heads = []
    for number, size in enumerate(files.sizes.tolist()):
        heads.append(files.part(number, 0, min(LONGEST_HEADER, size)))

    filled = [head for head in heads if head.size]
    parts = dict(zip(filled, read_ranges(filled), strict=True))
    arrays = {}
    for number, (name, file) in enumerate(urls.items()):
        dtype, shape = _header_of(file, bytes(parts.get(heads[number], b"")))
        start = 4 + 4 * len(shape)
        there = int(files.sizes[number]) - start
        if there != math.prod(shape) * dtype.itemsize:
            raise _wrong_size(file, there, shape, dtype)
        pieces = Pieces.one(number, start, shape[0])
        arrays[name] = NamedArray(StoredArray(addresses, pieces, dtype.newbyteorder(">"), shape[1:]))

    return open_arrays(NAME, url, addresses, arrays, known)


def _headers(files: dict[str, Path], trust: bool) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    headers = {}
    for name, file in files.items():
        dtype, shape = _header_of(file, _beginning(file))
        _check_size(file, dtype, shape, trust)
        headers[name] = dtype, shape

    return headers


def _check_size(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], trust: bool) -> None:
    """Raises `FormatError` for a file that cannot hold what its header promises, before anything is made that large."""
    needed = math.prod(shape) * dtype.itemsize
    there = file.stat().st_size
    if file.suffix == ".gz":
        check_unfolding(file, "a gzip file", needed, there, trust)
    elif there != 4 + 4 * len(shape) + needed:
        raise _wrong_size(file, there - 4 - 4 * len(shape), shape, dtype)


def _beginning(file: Path) -> bytes:
    try:
        if file.suffix == ".gz":
            with gzip.open(file) as stream:
                return stream.read(LONGEST_HEADER)

        with file.open("rb") as plain:
            return plain.read(LONGEST_HEADER)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise unreadable(file, "gzip file", error) from error


def _header_of(file: Path | str, data: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES or data[3] == 0 or len(data) < 4 + 4 * data[3]:
        expected = "two zero bytes, a type from 8 to 14, the number of dimensions, and their lengths"
        found = f"{len(data)} bytes that begin with {data[:4]!r}"
        fix = "restore the file; a compressed one must end in .gz"
        raise FormatError.about("this is no IDX file", place=file, found=found, expected=expected, fix=fix)

    return np.dtype(TYPES[data[2]][1]).newbyteorder("="), struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])


def read_idx(file: Path, trust: bool = False) -> Array:
    """Returns the array of an IDX file: mapped into memory if it is not compressed and of single bytes."""
    data = _beginning(file)
    dtype, shape = _header_of(file, data)
    start = 4 + 4 * len(shape)
    count = math.prod(shape)
    _check_size(file, dtype, shape, trust)
    if file.suffix != ".gz":
        # An empty mapping is refused by the system.
        if count == 0:
            return np.empty(shape, dtype)
        mapped = np.asarray(np.memmap(file, dtype.newbyteorder(">"), "r", start, shape))
        if dtype.itemsize == 1:
            return mapped
        return mapped.astype(dtype)

    # One byte more than there should be tells a file to which something was added; no more of it is unpacked.
    try:
        with gzip.open(file) as stream:
            body = stream.read(start + count * dtype.itemsize + 1)[start:]
    except (EOFError, zlib.error, gzip.BadGzipFile, MemoryError, OverflowError) as error:
        raise unreadable(file, "gzip file", error) from error

    if len(body) != count * dtype.itemsize:
        raise _wrong_size(file, len(body), shape, dtype)
    return np.frombuffer(body, dtype.newbyteorder(">")).reshape(shape).astype(dtype, copy=False)


def _wrong_size(file: Path | str, found: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FormatError:
    expected = f"{math.prod(shape) * dtype.itemsize:,} bytes for {dtype.name} {list(shape)}"
    fix = "restore the file: it was cut off, or something was added"
    return FormatError.about(
        "an IDX file is not as long as it says", place=file, found=f"{found:,} bytes", expected=expected, fix=fix
    )


def _load(files: dict[str, Path], path: str, schema: Schema, trust: bool) -> dict[str, Column]:
    arrays = {}
    for name, file in files.items():
        arrays[name] = read_idx(file, trust)

    return columns_from(arrays, path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    return ArraysWriter(NAME, path, schema, _finish, folder=True)


def _finish(arrays: dict[str, Array], path: Path) -> None:
    for name, array in arrays.items():
        code, word = CODES[array.dtype]
        with (path / f"{PLURAL.get(name, name)}-idx{array.ndim}-{word}").open("wb") as file:
            file.write(struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape))
            for start in range(0, len(array), 4096):
                file.write(array[start : start + 4096].astype(array.dtype.newbyteorder(">")).tobytes())
