"""A flat file of numbers without a head, such as the `train.bin` of nanoGPT: one column, `tokens`.

It is mapped into memory; in a store, the windows that are needed are read.

Nothing in the file says what it holds, so the type must be given; no other file is taken for one of these.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import DatasetNotFoundError, FormatError, UsageError
from headrace.core.files.regular_files import check_regular
from headrace.data.formats.columns import Array
from headrace.data.formats.columns.arrays import ColumnsReader
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.remote_arrays import Pieces, StoredArray
from headrace.data.formats.columns.schema import NUMBERS, Field, Schema
from headrace.data.formats.protocol import Reader
from headrace.data.formats.stored_arrays import NamedArray, open_arrays
from headrace.storage.locations import is_url
from headrace.storage.remote_files import RemoteFiles

NAME = "flat"
COLUMN = "tokens"
EXAMPLE = 'headrace.open_tokens("train.bin", "uint16", window=1024)'


def number_type(dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Returns NumPy's type of a name or type. Raises `UsageError` if a file cannot hold plain numbers of it."""
    expected = "a type of numbers in the machine's byte order, such as 'uint16' or 'int32'"
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise UsageError.about(
            "no such type", place="headrace.open_tokens(dtype=)", found=repr(dtype), expected=expected
        ) from error

    if found not in NUMBERS:
        raise UsageError.about(
            "no such type", place="headrace.open_tokens(dtype=)", found=repr(dtype), expected=expected
        )
    return found


def open_flat(path: str, dtype: np.dtype[Any]) -> Reader:
    """Opens a file of numbers of a type, end to end, without reading it. path: also a URL.

    Raises `DatasetNotFoundError`, and `FormatError` if its length is no multiple of the type's.
    """
    if is_url(path):
        return _open_stored(path, dtype)

    try:
        check_regular(path)
    except FileNotFoundError as error:
        fix = "correct the path"
        raise DatasetNotFoundError.about("there are no such data", place=path, found="nothing", fix=fix) from error

    size = Path(path).stat().st_size
    _check_size(path, size, dtype)
    schema = Schema((Field(COLUMN, "fixed", dtype),))
    return ColumnsReader(NAME, path, schema, size // dtype.itemsize, functools.partial(_load, path, dtype))


def _open_stored(url: str, dtype: np.dtype[Any]) -> Reader:
    files = RemoteFiles.at([url])
    size = int(files.sizes[0])
    _check_size(url, size, dtype)
    addresses = Addresses(files)
    tokens = StoredArray(addresses, Pieces.one(0, 0, size // dtype.itemsize), dtype, ())
    return open_arrays(NAME, url, addresses, {COLUMN: NamedArray(tokens)})


def _check_size(path: str, size: int, dtype: np.dtype[Any]) -> None:
    if size == 0 or size % dtype.itemsize:
        raise FormatError.about(
            "this is no flat file of such numbers",
            place=path,
            found=f"{size:,} bytes",
            expected=f"a multiple of {dtype.itemsize}, the bytes of one {dtype.name}",
            fix="give the dtype= it was written with, or write the file again if it was cut off",
        )


def _load(path: str, dtype: np.dtype[Any]) -> dict[str, Array]:
    return {COLUMN: np.asarray(np.memmap(path, dtype, "r"))}
