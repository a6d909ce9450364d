"""An `.npz` archive: one array a column. Uncompressed members of single bytes are mapped, others read into memory."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import FormatError, explain
from headrace.formats.arrays import NPY_FAILURES, ArraysWriter, ColumnsReader, columns_from, first_bytes, unreadable
from headrace.formats.columns import Array, Column, as_numbers
from headrace.formats.manifest import manifest_of
from headrace.formats.protocol import Reader, Writer
from headrace.formats.schema import Field, Schema

NAME = "npz"
TITLE = "NumPy archive"
LOCAL_HEADER = struct.Struct("<4s22xHH")
READ_FAILURES = (*NPY_FAILURES, zipfile.BadZipFile, zlib.error, NotImplementedError, struct.error,
                 RuntimeError)  # fmt: skip
LARGEST_RATIO = 1100
"""Deflate makes nothing more than 1,032 times as long: an archive that promises more is damaged, or hostile."""


def claims(path: str) -> bool:
    """See `Format.claims`."""
    return path.endswith(".npz") and (Path(path).is_file() or first_bytes(path, 2) == b"PK")


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    return None


def open_reader(path: str, trust: bool) -> Reader:
    """See `Format.open_reader`."""
    manifest = manifest_of(path, NAME)
    headers = _headers(path)
    schema, columns = columns_from(headers, path, None if manifest is None else manifest.schema)
    length = len(next(iter(columns.values()))) if columns else 0
    return ColumnsReader(NAME, path, schema, length, functools.partial(_load, path, schema))


def _headers(path: str) -> dict[str, Array]:
    """Returns stand-ins for the arrays, of their types and shapes, which take no memory; offsets are read."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = _checked(path, info, archive)
                if name is None:
                    continue
                with archive.open(info) as file:
                    shape, dtype = _header_of(file)
                stand_in = np.broadcast_to(np.zeros((), dtype), shape)
                arrays[name] = _read(archive, info, path) if name.endswith(".offsets") else stand_in
                if stand_in.size * dtype.itemsize > info.file_size:
                    raise ValueError(f"member {info.filename} is too short for shape {shape}")
    except (*READ_FAILURES, OSError) as error:
        if isinstance(error, FormatError) or getattr(error, "filename", None) is not None:
            raise
        raise unreadable(path, ".npz archive", error) from error
    return arrays


def _checked(path: str, info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> str | None:
    if not info.filename.endswith(".npy"):
        return None
    if info.file_size > LARGEST_RATIO * max(info.compress_size, 1):
        found = f"member {info.filename} of {info.compress_size:,} bytes that promises {info.file_size:,}"
        raise FormatError(explain("an archive is damaged", place=path, found=found, expected="what was compressed"))
    if info.flag_bits & 1:
        raise ValueError(f"member {info.filename} is encrypted")
    return info.filename.removesuffix(".npy")


def _header_of(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which is a pickle and is not opened")
    return shape, dtype


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> Array:
    mapped = _mapped(archive, info, path)
    if mapped is not None:
        return mapped
    with archive.open(info) as file:
        return as_numbers(np.lib.format.read_array(io.BytesIO(file.read()), allow_pickle=False), path)


def _mapped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> Array | None:
    """Maps an uncompressed member whose elements are single bytes; those of others need not be aligned."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with Path(path).open("rb") as raw:
        raw.seek(info.header_offset)
        magic, name_length, extra_length = LOCAL_HEADER.unpack(raw.read(LOCAL_HEADER.size))
        start = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
        raw.seek(start)
        shape, dtype = _header_of(raw)
        at = raw.tell()
        plain = magic == b"PK\x03\x04" and dtype.itemsize == 1 and at + int(np.prod(shape)) <= start + info.file_size
        if not plain or int(np.prod(shape)) == 0:
            return None
        raw.seek(start)
        if np.lib.format.read_magic(raw) and b"'fortran_order': True" in raw.read(at - start):
            return None
    return np.asarray(np.memmap(path, dtype, "r", at, shape))


def _load(path: str, schema: Schema) -> dict[str, Column]:
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if (name := _checked(path, info, archive)) is not None:
                    arrays[name] = _read(archive, info, path)
    except (*READ_FAILURES, OSError) as error:
        if isinstance(error, FormatError) or getattr(error, "filename", None) is not None:
            raise
        raise unreadable(path, ".npz archive", error) from error
    return columns_from(arrays, path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    """See `Format.open_writer`."""
    return ArraysWriter(NAME, path, schema, _finish)


def _finish(arrays: dict[str, Array], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():  # as np.savez, which has no room for some names
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
