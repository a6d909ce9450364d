"""Arrays in .npy files: mapped, or taken out of bytes that were fetched."""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.data.formats.columns import Array
from headrace.data.formats.unreadable import fix_of, unreadable

NPY_FAILURES = (ValueError, EOFError, TypeError, SyntaxError, OverflowError, KeyError, MemoryError, RecursionError,
                tokenize.TokenError, Warning)  # fmt: skip
"""What NumPy raises when bytes of an .npy file are changed at random."""

HEAD = 1 << 14
"""Bytes in which the head of an .npy file lies: NumPy takes none above 10,000."""


def map_npy(path: Path) -> Array:
    """Maps an `.npy` file into memory, read-only. Raises `FormatError` if it is not one, or is cut off."""
    try:
        with warnings.catch_warnings():
            # What NumPy warns of in a damaged header comes as an error as well. `np.load` would open archives, too.
            warnings.simplefilter("ignore")
            array = np.lib.format.open_memmap(path, "r")
    except NPY_FAILURES as error:
        raise unreadable(path, ".npy file", error, fix_of(error)) from error
    except OSError as error:
        # Without a file's name the error is of the mapping: no memory (ENOMEM, 12), or a length that the header made up
        # (EINVAL, 22). All others are the operating system's own words about the path.
        if error.filename is None and error.errno in (None, 12, 22):
            raise unreadable(path, ".npy file", error) from error
        raise

    return np.asarray(array)


def npy_head(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the head of an .npy file: shape, Fortran's order or not, type. Raises `ValueError` if it makes no sense."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    else:
        read = np.lib.format.read_array_header_2_0

    # `np.lib.format.read_array` would unpickle objects if allowed to, and take memory for any shape at once.
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which is a pickle and is not opened")
    if min(shape, default=0) < 0:
        raise ValueError(f"negative dimensions: {shape}")
    return shape, fortran, dtype


def npy_from(data: memoryview) -> Array:
    """Returns the array of an .npy file in memory: a view of it, read-only, if it is aligned. Raises `NPY_FAILURES`."""
    head = io.BytesIO(data[:HEAD])
    shape, fortran, dtype = npy_head(head)
    count = math.prod(shape)
    start = head.tell()
    if count * dtype.itemsize > len(data) - start:
        raise ValueError(f"{len(data) - start:,} bytes of values, too short for {dtype} {list(shape)}")
    if count == 0:
        return np.empty(shape, dtype)

    array: Array = np.frombuffer(data, dtype, count, start)
    if fortran:
        array = array.reshape(shape, order="F")
    else:
        array = array.reshape(shape)

    # In an archive a member may begin at any byte; torch and some loops of NumPy want whole addresses.
    if array.flags.aligned:
        return array
    return array.copy()
