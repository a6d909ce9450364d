"""An `.npz` archive: one array a column. Uncompressed members of single bytes are mapped, others read into memory."""

from __future__ import annotations

import functools
import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from headrace.core.errors import FormatError
from headrace.data.formats.columns import Array, Column, as_numbers
from headrace.data.formats.columns.arrays import ColumnsReader, columns_from, length_of, wanted_arrays
from headrace.data.formats.columns.arrays_writer import ArraysWriter
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.guards.limits import check_unfolding
from headrace.data.formats.manifest import known_schema, manifest_of, only_known
from headrace.data.formats.npy_arrays import NPY_FAILURES, npy_from, npy_head
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.unreadable import fix_of, unreadable
from headrace.storage.files import first_bytes, is_file

NAME = "npz"
TITLE = "NumPy archive"
LOCAL_HEADER = struct.Struct("<4s22xHH")
PIECE = 1 << 20
"""Bytes of a member that are unpacked at a time."""

READ_FAILURES = (*NPY_FAILURES, zipfile.BadZipFile, zlib.error, NotImplementedError, struct.error,
                 RuntimeError)  # fmt: skip


def claims(path: str) -> bool:
    return path.endswith(".npz") and (is_file(path) or first_bytes(path, 2) == b"PK")


def refusal(field: Field) -> str | None:
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest = manifest_of(path, NAME)
    headers = _headers(path, trust, columns)
    schema, found = columns_from(headers, path, only_known(known_schema(manifest), columns))
    return ColumnsReader(NAME, path, schema, length_of(found), functools.partial(_load, path, schema, trust))


def _headers(path: str, trust: bool, columns: Names | None) -> dict[str, Array]:
    """Returns stand-ins for the arrays, of their types and shapes, which take no memory; offsets are read."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name, info in _members(path, archive, trust, columns).items():
                with archive.open(info) as file:
                    shape, _, dtype = npy_head(file)
                # One zero for all values: no member is unpacked before a sample is asked for.
                stand_in = np.broadcast_to(np.zeros((), dtype), shape)
                if stand_in.size * dtype.itemsize > info.file_size:
                    raise ValueError(f"member {info.filename} is too short for shape {shape}")
                if name.endswith(".offsets"):
                    arrays[name] = _read(archive, info, path)
                else:
                    arrays[name] = stand_in
    except (*READ_FAILURES, OSError) as error:
        if isinstance(error, FormatError) or getattr(error, "filename", None) is not None:
            raise
        raise unreadable(path, ".npz archive", error, fix_of(error)) from error

    return arrays


def _members(path: str, archive: zipfile.ZipFile, trust: bool, columns: Names | None) -> dict[str, zipfile.ZipInfo]:
    """Returns the members of wanted arrays by name. Raises `FormatError` if they would take too much memory."""
    there = {}
    for member in archive.infolist():
        if member.filename.endswith(".npy"):
            there[member.filename.removesuffix(".npy")] = member

    members = {name: there[name] for name in wanted_arrays(there, columns)}

    # Bit 0 of the flags: encrypted (PKWARE's APPNOTE, 4.4.4).
    encrypted = []
    for member in members.values():
        if member.flag_bits & 1:
            encrypted.append(member.filename)

    if encrypted:
        raise ValueError(f"member {encrypted[0]} is encrypted")

    total = sum(member.file_size for member in members.values())
    check_unfolding(path, "an archive", total, Path(path).stat().st_size, trust)
    return members


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> Array:
    mapped = _mapped(archive, info, path)
    if mapped is not None:
        return mapped

    # Into memory of NumPy's, which asks the system for large pages: random rows come a fifth faster out of them than
    # out of the bytes that `read()` would return. Nothing is touched of what a header only promises.
    data = np.empty(info.file_size, np.uint8)
    at = 0
    with archive.open(info) as file:
        while piece := file.read(PIECE):
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)

    data.setflags(write=False)
    return as_numbers(npy_from(data.data[:at]), path)


def _mapped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> Array | None:
    """Maps an uncompressed member whose elements are single bytes; those of others need not be aligned."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None

    # In front of the content lies a local header (APPNOTE, 4.3.7), whose name and extra field may be longer or shorter
    # than those of the directory: where the content begins stands here only.
    with Path(path).open("rb") as raw:
        raw.seek(info.header_offset)
        magic, name_length, extra_length = LOCAL_HEADER.unpack(raw.read(LOCAL_HEADER.size))
        start = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
        raw.seek(start)
        shape, fortran, dtype = npy_head(raw)
        at = raw.tell()
        count = math.prod(shape)

    plain = magic == b"PK\x03\x04" and dtype.itemsize == 1 and at + count <= start + info.file_size
    if not plain or count == 0 or fortran:
        return None
    return np.asarray(np.memmap(path, dtype, "r", at, shape))


def _load(path: str, schema: Schema, trust: bool) -> dict[str, Column]:
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name, info in _members(path, archive, trust, schema.names).items():
                arrays[name] = _read(archive, info, path)
    except (*READ_FAILURES, OSError) as error:
        if isinstance(error, FormatError) or getattr(error, "filename", None) is not None:
            raise
        raise unreadable(path, ".npz archive", error, fix_of(error)) from error

    return columns_from(arrays, path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    return ArraysWriter(NAME, path, schema, _finish)


def _finish(arrays: dict[str, Array], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        # As `np.savez`, which takes the names as arguments of its own, and so has no room for `file` among others.
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
