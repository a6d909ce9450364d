"""A folder of `.npy` files, one a column (two for samples of different lengths), mapped into memory.

Every file opens with `np.load(path, mmap_mode="r")`. Opening costs a millisecond whatever the size, all processes share
the pages, and batches are gathered straight from the mapping. In a store, the rows that are needed are read.
"""

from __future__ import annotations

import functools
from pathlib import Path

from headrace.core.errors import DatasetNotFoundError, FormatError
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Array, Block, Column
from headrace.data.formats.columns.arrays import ColumnsReader, array_names, columns_from, length_of, wanted_arrays
from headrace.data.formats.columns.arrays_writer import Spool
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.file_names import array_name, file_name
from headrace.data.formats.manifest import (
    check_size,
    commit_with_manifest,
    files_ending_in,
    known_schema,
    only_known,
    read_manifest,
)
from headrace.data.formats.npy_arrays import map_npy
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.stored_arrays import NamedArray, npy_arrays, open_arrays
from headrace.storage.files import is_folder, join
from headrace.storage.locations import is_url
from headrace.storage.remote_files import RemoteFiles

NAME = "memmap"
TITLE = "folder of .npy files, memory-mapped"
SUFFIXES = (".npy",)


def claims(path: str) -> bool:
    if is_folder(path):
        return bool(files_ending_in(path, SUFFIXES))
    return False


def refusal(field: Field) -> str | None:
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest = read_manifest(path, NAME)
    names = files_ending_in(path, SUFFIXES)
    if manifest is not None:
        expected = []
        for field in manifest.schema:
            for name in array_names(field):
                expected.append(file_name(name))

        if missing := sorted(set(expected) - set(names)):
            found = f"no {', '.join(missing)}"
            raise FormatError.about(
                "files are missing",
                place=path,
                found=found,
                expected=", ".join(expected),
                fix="copy the data again, or pack them again",
            )

        names = expected
        for name in names:
            check_size(manifest, name, join(path, name))

    if not names:
        raise DatasetNotFoundError.about(
            "found no .npy files",
            place=path,
            found="none",
            expected="one a column",
            fix="correct the path, or pack the data again",
        )

    by_array = {array_name(name): name for name in names}
    names = [by_array[wanted] for wanted in wanted_arrays(by_array, columns)]
    known = only_known(known_schema(manifest), columns)
    if is_url(path):
        return _open_stored(path, names, known)

    schema, mapped = columns_from(_map(path, names), path, known)
    return ColumnsReader(NAME, path, schema, length_of(mapped), functools.partial(_load, path, tuple(names), schema))


def _open_stored(url: str, names: list[str], known: Schema | None) -> Reader:
    urls = [join(url, name) for name in names]
    files = RemoteFiles.at(urls)
    addresses = Addresses(files)
    arrays = {}
    for name, array in zip(names, npy_arrays(files, urls, addresses), strict=True):
        arrays[array_name(name)] = NamedArray(array)

    return open_arrays(NAME, url, addresses, arrays, known)


def _map(path: str, names: list[str]) -> dict[str, Array]:
    arrays = {}
    for name in names:
        arrays[array_name(name)] = map_npy(Path(path) / name)

    return arrays


def _load(path: str, names: tuple[str, ...], schema: Schema) -> dict[str, Column]:
    return columns_from(_map(path, list(names)), path, schema)[1]


class _MemmapWriter:
    def __init__(self, path: str, schema: Schema) -> None:
        self._schema = schema
        self._target = AtomicTarget(path, folder=True)
        self._spool = Spool(self._target.path, schema)

    def append(self, block: Block) -> None:
        self._spool.append(block)

    def seal(self) -> None:
        self._spool.finish()
        commit_with_manifest(self._target, NAME, self._spool.length, self._schema)

    def abort(self) -> None:
        self._spool.finish()
        self._target.abort()


def open_writer(path: str, schema: Schema) -> Writer:
    return _MemmapWriter(path, schema)
