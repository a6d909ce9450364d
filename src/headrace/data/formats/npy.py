"""A single `.npy` file: one column, named `data`; with a structured dtype, one column for each of its fields."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from headrace.data.formats.columns import Array, Column
from headrace.data.formats.columns.arrays import ColumnsReader, columns_from, length_of, single_number, wanted_arrays
from headrace.data.formats.columns.arrays_writer import ArraysWriter
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.manifest import known_schema, manifest_of, only_known
from headrace.data.formats.npy_arrays import map_npy
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.stored_arrays import NamedArray, npy_arrays, open_arrays
from headrace.storage.files import first_bytes, is_file
from headrace.storage.locations import is_url
from headrace.storage.remote_files import RemoteFiles

NAME = "npy"
TITLE = "NumPy array file"


def claims(path: str) -> bool:
    return first_bytes(path, 6) == b"\x93NUMPY" or (path.endswith(".npy") and is_file(path))


def refusal(field: Field) -> str | None:
    if field.kind == "fixed":
        return None
    return "an .npy file holds samples of one size"


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    known = only_known(known_schema(manifest_of(path, NAME)), columns)
    if is_url(path):
        return _open_stored(path, known, columns)

    arrays = _arrays(path)
    wanted = {name: arrays[name] for name in wanted_arrays(arrays, columns)}
    schema, found = columns_from(wanted, path, known)
    return ColumnsReader(NAME, path, schema, length_of(found), functools.partial(_load, path, schema))


def _open_stored(url: str, known: Schema | None, columns: Names | None) -> Reader:
    files = RemoteFiles.at([url])
    addresses = Addresses(files)
    array = npy_arrays(files, [url], addresses)[0]
    if array.dtype.names is None:
        return open_arrays(NAME, url, addresses, {"data": NamedArray(array)}, known)

    parts = {name: NamedArray(array, name) for name in wanted_arrays(array.dtype.names, columns)}
    return open_arrays(NAME, url, addresses, parts, known)


def _arrays(path: str) -> dict[str, Array]:
    array = map_npy(Path(path))
    if array.ndim == 0:
        raise single_number(path)
    if array.dtype.names is None:
        return {"data": array}
    return {name: array[name] for name in array.dtype.names}


def _load(path: str, schema: Schema) -> dict[str, Column]:
    return columns_from(_arrays(path), path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    return ArraysWriter(NAME, path, schema, _finish)


def _finish(arrays: dict[str, Array], path: Path) -> None:
    if list(arrays) == ["data"]:
        whole = arrays["data"]
    else:
        columns = []
        for name, array in arrays.items():
            columns.append((name, array.dtype, array.shape[1:]))

        # The records are written through a mapping: in memory, all columns would be there a second time.
        whole = np.lib.format.open_memmap(path, "w+", np.dtype(columns), (length_of(arrays),))
        for name, array in arrays.items():
            whole[name] = array
        return

    with path.open("wb") as file:
        np.lib.format.write_array(file, whole, allow_pickle=False)
