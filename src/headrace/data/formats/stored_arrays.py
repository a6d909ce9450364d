"""Named arrays in files of a store, as the columns of a dataset: for the formats that keep columns as arrays."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.core.errors import FormatError
from headrace.data.formats.columns import Array
from headrace.data.formats.columns.arrays import (
    array_names,
    check_lengths,
    check_offsets,
    fields_from,
    single_number,
    values_of,
)
from headrace.data.formats.columns.byte_spans import Addresses, Units
from headrace.data.formats.columns.remote_arrays import FixedColumn, Pieces, RaggedColumn, StoredArray, read_units
from headrace.data.formats.columns.remote_reader import RemoteColumnsReader, StoredColumn
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.fetched_whole import NotByRanges
from headrace.data.formats.npy_arrays import HEAD, NPY_FAILURES, npy_head
from headrace.data.formats.unreadable import fix_of, unreadable
from headrace.storage.remote_files import RemoteFiles, read_ranges


class NamedArray(NamedTuple):
    """An array in files of a store, or one field of its records."""

    array: StoredArray
    part: str | None = None

    def stand_in(self) -> Array:
        """Returns an array of the same type and shape that takes no memory, in the machine's byte order."""
        native = self.array.dtype.newbyteorder("=")
        array: Array = np.broadcast_to(np.zeros((), native), (len(self.array), *self.array.shape))
        if self.part is not None:
            array = array[self.part]
        return array


def open_arrays(
    format_name: str,
    place: str,
    addresses: Addresses,
    arrays: Mapping[str, NamedArray],
    known: Schema | None = None,
) -> RemoteColumnsReader:
    """Returns a reader of the columns that named arrays hold. The ends of offsets are read.

    known: the schema, if a manifest tells it. Raises `FormatError` as `arrays.columns_from` does, and `StorageError`.
    """
    stand_ins = {name: named.stand_in() for name, named in arrays.items()}
    fields = fields_from(stand_ins, place, known)
    ends = _ends_of_offsets(fields, arrays, addresses)
    lengths = {}
    columns: dict[str, StoredColumn] = {}
    for field in fields:
        values = values_of(stand_ins, field, place)
        main, *others = array_names(field)
        if not others:
            columns[field.name] = FixedColumn(field, *arrays[main], len(fields))
            lengths[field.name] = len(values)
            continue

        offsets = arrays[others[0]].array
        check_offsets(stand_ins[others[0]], len(values), field, place, ends.get(field.name))
        columns[field.name] = RaggedColumn(field, offsets, arrays[main].array, place, len(fields))
        lengths[field.name] = len(offsets) - 1

    check_lengths(lengths, place)
    length = next(iter(lengths.values()), 0)
    return RemoteColumnsReader(format_name, place, Schema(fields), length, addresses, columns)


def _ends_of_offsets(
    fields: Sequence[Field], arrays: Mapping[str, NamedArray], addresses: Addresses
) -> dict[str, tuple[int, int]]:
    """Returns the first and the last offset of each field that has such an array of whole numbers."""
    units: dict[str, Units] = {}
    for field in fields:
        named = arrays.get(array_names(field)[-1])
        if field.kind == "fixed" or named is None or named.part is not None:
            continue

        offsets = named.array
        if len(offsets) and not offsets.shape and offsets.dtype.kind in "iu":
            edges = np.array([0, len(offsets) - 1])
            units[field.name] = offsets.reading(edges, edges + 1, alone=True).units

    found = {}
    for (name, _), data in zip(units.items(), read_units(list(units.values()), addresses), strict=True):
        dtype = arrays[array_names(_field_named(fields, name))[-1]].array.dtype
        numbers = data.view(dtype)
        found[name] = int(numbers[0]), int(numbers[-1])

    return found


def _field_named(fields: Sequence[Field], name: str) -> Field:
    return next(field for field in fields if field.name == name)


def npy_arrays(files: RemoteFiles, urls: Sequence[str], addresses: Addresses) -> list[StoredArray]:
    """Returns the arrays of `.npy` files, of which the heads are read.

    Raises `FormatError` for what is no such file or cut off, `NotByRanges` if samples do not lie end to end (Fortran's
    order), and `StorageError`.
    """
    heads = []
    for number in range(len(urls)):
        heads.append(files.part(number, 0, min(HEAD, int(files.sizes[number]))))

    filled = [head for head in heads if head.size]
    parts = dict(zip(filled, read_ranges(filled), strict=True))
    arrays = []
    for number, (url, head) in enumerate(zip(urls, heads, strict=True)):
        try:
            with warnings.catch_warnings():
                # What NumPy warns of in a damaged header comes as an error as well.
                warnings.simplefilter("ignore")
                arrays.append(_npy_array(number, parts.get(head, memoryview(b"")), files, addresses, url))
        except NPY_FAILURES as error:
            if isinstance(error, FormatError):
                raise
            raise unreadable(url, ".npy file", error, fix_of(error)) from error

    return arrays


def _npy_array(number: int, head: memoryview, files: RemoteFiles, addresses: Addresses, url: str) -> StoredArray:
    stream = io.BytesIO(head)
    shape, fortran, dtype = npy_head(stream)
    if not shape:
        raise single_number(url)
    if fortran and math.prod(shape[1:]) > 1 and shape[0] > 1:
        raise NotByRanges

    size = math.prod(shape) * dtype.itemsize
    there = int(files.sizes[number]) - stream.tell()
    if size > there:
        raise ValueError(f"{there:,} bytes of values, too short for {dtype} {list(shape)}")
    return StoredArray(addresses, Pieces.one(number, stream.tell(), shape[0]), dtype, shape[1:])


def check_size(place: str, found: int, expected: int) -> None:
    """Raises `FormatError` for a file of `found` bytes that should have at least `expected` ones."""
    if found < expected:
        raise FormatError.about(
            "a file was cut off",
            place=place,
            found=f"{found:,} bytes",
            expected=f"{expected:,} bytes",
            fix="restore the file",
        )


def dtype_of(named: str) -> np.dtype[Any]:
    """Returns NumPy's type of the name of one of torch's, such as `torch.int64`. Raises `ValueError` for others."""
    import torch

    kind = getattr(torch, named.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no type of torch: {named!r}")
    return torch.empty(0, dtype=kind).numpy().dtype
