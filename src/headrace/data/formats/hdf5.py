"""HDF5: one dataset a column at the file's top level (`group/name` for those in groups), read with h5py.

Each process opens the file itself. What lies in one piece and uncompressed, as our writer makes it, is mapped into
memory and needs HDF5 no more; other datasets are read chunk by chunk. Needs `pip install 'headrace[hdf5]'`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import FormatError, warn
from headrace.core.extras import extra
from headrace.core.process.per_process import Handle
from headrace.data.formats.columns import Array, Column, column_from
from headrace.data.formats.columns.arrays import ColumnsReader, columns_from, fix_of_lengths, length_of, wanted_arrays
from headrace.data.formats.columns.arrays_writer import ArraysWriter
from headrace.data.formats.columns.schema import NUMBERS, Field, Schema, schema_of_text, to_json_text
from headrace.data.formats.columns.tables import BlockReader
from headrace.data.formats.guards.limits import allowed, check_unfolding, too_large
from headrace.data.formats.hdf5_filters import check_filters, missing_filters, without_filters
from headrace.data.formats.manifest import manifest_of, only_known
from headrace.data.formats.protocol import Names, Reader, Writer, even_blocks
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import first_bytes, is_file

NAME = "hdf5"
TITLE = "HDF5 file"
MAGIC = b"\x89HDF\r\n\x1a\n"
ABOUT = "__headrace__"
"""The dataset of bytes that describes the columns. An attribute would lie in a heap that HDF5 has no checksum of."""

LONGEST_TEXT = 1 << 26
KEEP = 256 << 20
"""Bytes of decoded chunks that a process keeps."""

RUN = 4 << 20
"""Bytes that are read at a time, about, where chunks are smaller."""

MOST = 64 << 20
"""Bytes up to which whole chunks of all columns are read at a time, if these differ in length."""

BLOCKS = 1 << 22
"""Blocks that a dataset may have, 16 TiB of samples at least: each costs a hundred bytes and more."""

LOCKING = (None, True)
"""How a file is opened. HDF5 opens none that the process has open already in another of these ways."""

FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, OverflowError, MemoryError, UnicodeDecodeError)


def claims(path: str) -> bool:
    return first_bytes(path, 8) == MAGIC or (path.endswith((".h5", ".hdf5")) and is_file(path))


def refusal(field: Field) -> str | None:
    if "/" in field.name or field.name == ".":
        return "HDF5 takes a slash for a group, and '.' for the group itself"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest_of(path, NAME)
    with _file(path) as file:
        try:
            datasets = _datasets(file)
            ours = schema_of_text(_text_of(datasets.pop(ABOUT, None)), path)
            # Such a dataset could name any file that this user may read, and its bytes would be taken for samples.
            outside = []
            for name in wanted_arrays(datasets, columns):
                dataset = datasets[name]
                if dataset is None or dataset.external is not None or dataset.is_virtual:
                    outside.append(name)

            if outside:
                found = f"datasets whose values lie in other files, which are not opened: {', '.join(outside)}"
                fix = "copy their values into one file: file[name] = other[name][()]; or leave them out with columns="
                what = "an HDF5 file leads to others"
                raise FormatError.about(what, place=path, found=found, expected="values in the file", fix=fix)

            if not datasets:
                raise ValueError("no datasets in it")
            wanted = {name: datasets[name] for name in wanted_arrays(datasets, columns)}
            if all(map(_is_mappable, wanted.values())):
                schema, mapped = columns_from(_all_mapped(wanted), path, only_known(ours, columns))
                return ColumnsReader(NAME, path, schema, length_of(mapped), functools.partial(_load, path, schema))
            return _foreign(path, wanted, trust)
        except FAILURES as error:
            if isinstance(error, FormatError):
                raise
            raise unreadable(path, "HDF5 file", error) from error


def _file(path: str) -> Any:
    h5py = extra("h5py", "hdf5")
    # h5py words a missing file or permission in its own way; opened first, it fails with Python's words and its path.
    with Path(path).open("rb"):
        pass

    for locking in LOCKING:
        try:
            return h5py.File(path, "r", locking=locking)
        except FAILURES as error:
            said = str(error)
            if "already open" in said or ("unable to lock file" in said and "errno = 11" in said):
                raise _in_use(path) from error
            if "lock" not in said.lower():
                raise unreadable(path, "HDF5 file", error) from error

    # The program has it open without locks, or it lies in a folder of a network that has none.
    try:
        return h5py.File(path, "r", locking=False)
    except FAILURES as error:
        raise unreadable(path, "HDF5 file", error) from error


def _in_use(path: str) -> FormatError:
    found = "this program, or another one, has it open for writing"
    fix = "close it there first: HDF5 lets no process read a file that another has open for writing"
    expected = "a file that nobody writes to"
    return FormatError.about("an HDF5 file is in use", place=path, found=found, expected=expected, fix=fix)


def _datasets(file: Any) -> dict[str, Any]:
    """Returns the datasets by all their names, links within the file included; None: one that lies in another file."""
    found: dict[str, Any] = {}
    _add_datasets(file, "", (), found)
    return found


def _add_datasets(group: Any, prefix: str, above: tuple[Any, ...], found: dict[str, Any]) -> None:
    """Adds the datasets of a group and those below it. above: the groups on the way, to which a link may lead back."""
    h5py = extra("h5py", "hdf5")
    if group in above:
        return

    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            found[prefix + name] = None
            continue

        # None: a link that leads nowhere.
        item = group.get(name)
        if isinstance(item, h5py.Dataset):
            found[prefix + name] = item
        elif isinstance(item, h5py.Group):
            _add_datasets(item, f"{prefix}{name}/", (*above, group), found)


def _text_of(about: Any) -> str | None:
    if about is None:
        return None
    if about.dtype != np.uint8 or about.ndim != 1 or about.size > LONGEST_TEXT:
        raise ValueError(f"{ABOUT} is not a text")
    return bytes(about[:].tobytes()).decode("utf-8")


def _is_mappable(dataset: Any) -> bool:
    h5py = extra("h5py", "hdf5")
    try:
        known = dataset.dtype in NUMBERS
    except TypeError:
        # Of 24 bits and the like; `_field` says so.
        return False
    if dataset.chunks is not None or not dataset.ndim or not known:
        return False
    # bfloat16, 12 bits of 16 and the like have the name of a type that h5py converts them to.
    if not h5py.h5t.py_create(dataset.dtype, logical=True).equal(dataset.id.get_type()):
        return False
    return dataset.size == 0 or dataset.id.get_offset() is not None


def _all_mapped(datasets: Mapping[str, Any]) -> dict[str, Array]:
    arrays = {}
    for name, dataset in datasets.items():
        arrays[name] = _mapped(dataset)

    return arrays


def _mapped(dataset: Any) -> Array:
    """Maps a dataset that lies in one piece in the file."""
    if dataset.size == 0:
        return np.empty(dataset.shape, dataset.dtype)

    offset = dataset.id.get_offset()
    path = dataset.file.filename
    if offset + dataset.nbytes > Path(path).stat().st_size:
        raise ValueError(f"dataset {dataset.name} ends after the end of the file")

    # HDF5 puts values wherever there is room. Only our writer begins them at addresses that suit their type.
    mapped = np.asarray(np.memmap(path, dataset.dtype, "r", offset, dataset.shape))
    if mapped.flags.aligned:
        return mapped
    return np.array(mapped)


def _load(path: str, schema: Schema) -> dict[str, Column]:
    with _file(path) as file:
        try:
            datasets = _datasets(file)
            wanted = {name: datasets[name] for name in wanted_arrays(datasets, schema.names)}
            return columns_from(_all_mapped(wanted), path, schema)[1]
        except FAILURES as error:
            if isinstance(error, FormatError):
                raise
            raise unreadable(path, "HDF5 file", error) from error


def _foreign(path: str, datasets: Mapping[str, Any], trust: bool) -> Reader:
    """Returns a reader of datasets in chunks, compressed, or of strings. All must have the same length."""
    fields = []
    columns = {}
    lengths = {}
    single = []
    for name, dataset in datasets.items():
        if not dataset.shape:
            single.append(name)
            continue
        fields.append(_field(path, name, dataset))
        columns[name] = dataset
        lengths[name] = len(dataset)

    if single:
        warn(f"{path}: datasets of a single number are left out: {', '.join(single)}")
    if not fields:
        found = f"datasets of a single number, or empty: {', '.join(single)}"
        fix = "write datasets with one entry per sample"
        what = "an HDF5 file holds no samples"
        raise FormatError.about(what, place=path, found=found, expected="one entry per sample", fix=fix)
    if len(set(lengths.values())) != 1:
        expected = "as many entries in each dataset"
        fix = fix_of_lengths(lengths)
        raise FormatError.about("datasets differ in length", place=path, found=lengths, expected=expected, fix=fix)

    length = next(iter(lengths.values()))
    step = _step(columns, length)
    if length // step > BLOCKS:
        raise too_large(path, f"{length:,} samples", f"{BLOCKS * step:,} at most")

    for name, dataset in columns.items():
        _check_dataset(path, dataset, min(step, length), trust)
        check_filters(path, name, dataset)

    blocks = even_blocks(length, step)
    return ChunkReader(path, Schema(tuple(fields)), list(map(len, blocks)))


def _step(datasets: Mapping[str, Any], length: int) -> int:
    """Returns how many samples are read at a time: whole chunks, of all columns if these do not take too much."""
    row_bytes = {}
    chunks = {}
    for name, dataset in datasets.items():
        row_bytes[name] = max(dataset.nbytes // max(length, 1), 1)
        if dataset.chunks:
            chunks[name] = dataset.chunks[0]

    # A chunk is decompressed whole even for one sample, so that a step holds whole chunks of the column with the most
    # bytes, and of others whose chunks are longer as long as that many samples of all columns fit into memory.
    row = sum(row_bytes.values())
    heaviest = max(chunks, key=row_bytes.__getitem__, default=None)
    longest = 1
    for name, chunk in chunks.items():
        if chunk * row <= MOST or name == heaviest:
            longest = max(longest, chunk)

    return int(max(math.ceil(RUN / row / longest), 1) * longest)


def _check_dataset(path: str, dataset: Any, step: int, trust: bool) -> None:
    """Raises `FormatError` for a dataset of which `step` samples, or one chunk, take far more than it is stored in."""
    row = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    chunk = math.prod(dataset.chunks or (1,)) * dataset.dtype.itemsize
    if max(step * row, chunk) > allowed(0):
        what = f"{step:,} samples of dataset {dataset.name!r}, or a chunk of them,"
        check_unfolding(path, what, max(step * row, chunk), dataset.id.get_storage_size(), trust)


def _field(path: str, name: str, dataset: Any) -> Field:
    h5py = extra("h5py", "hdf5")
    try:
        kind = dataset.dtype
    except TypeError as error:
        found = f"dataset {name!r}: {error}"
        fix = "copy it as a type that NumPy has, of 8, 16, 32 or 64 bits; or leave it out with columns="
        what = "a dataset cannot be read"
        raise FormatError.about(what, place=path, found=found, expected="numbers or strings", fix=fix) from error

    string = h5py.check_string_dtype(kind)
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if string is not None and dataset.ndim == 1:
        return Field(name, "text")
    if kind.subdtype is not None and kind.subdtype[0].newbyteorder("=") in NUMBERS:
        element, shape = kind.subdtype
        return Field(name, "fixed", element.newbyteorder("="), (*dataset.shape[1:], *shape))
    if kind.kind == "V" and kind.names is None and dataset.ndim == 1:
        return Field(name, "bytes")
    if inner is not None and np.dtype(inner) in NUMBERS and dataset.ndim == 1:
        return Field(name, "ragged", np.dtype(inner))

    dtype = dataset.dtype.newbyteorder("=")
    if dtype not in NUMBERS:
        found = f"dataset {name!r} of type {dataset.dtype}"
        fix = "copy what is numbers or strings into a file of its own; nothing is unpickled, with trust=True neither"
        expected = "numbers or strings"
        raise FormatError.about("a dataset cannot be read", place=path, found=found, expected=expected, fix=fix)

    return Field(name, "fixed", dtype, dataset.shape[1:])


class ChunkReader(BlockReader):
    """Reads runs of whole chunks, and keeps the latest."""

    format = NAME

    def __init__(self, path: str, schema: Schema, lengths: Sequence[int]) -> None:
        super().__init__(path, schema, lengths, KEEP)
        self._file: Handle[Any] = Handle(functools.partial(_file, path))

    def read_block(self, number: int, names: Sequence[str]) -> Mapping[str, Column]:
        start = int(self.starts[number])
        stop = int(self.starts[number + 1])
        file = self._file.get()
        columns = {}
        for name in names:
            field = self.schema[name]
            missing: dict[int, str] = {}
            try:
                dataset = file[name]
                missing = missing_filters(dataset)
                if field.kind == "text":
                    part = dataset.asstr(errors="surrogateescape")[start:stop]
                else:
                    part = dataset[start:stop]

                if field.kind == "bytes":
                    values = list(map(bytes, part))
                else:
                    values = part

                if field.kind != "fixed":
                    columns[name] = column_from(field, values)
                else:
                    columns[name] = _native(part, field, stop - start)
            except FAILURES as error:
                if isinstance(error, FormatError):
                    raise
                place = f"{self.place}, dataset {name!r}, samples {start} to {stop - 1}"
                if missing:
                    raise without_filters(place, missing) from error
                raise unreadable(place, "HDF5 file", error) from error

        return columns


def _native(part: Array, field: Field, length: int) -> Array:
    if part.shape != (length, *field.shape):
        raise ValueError(f"shape {part.shape} instead of {(length, *field.shape)}")
    return part.astype(field.dtype, copy=False)


def open_writer(path: str, schema: Schema) -> Writer:
    extra("h5py", "hdf5")
    return ArraysWriter(NAME, path, schema, functools.partial(_finish, schema))


def _finish(schema: Schema, arrays: dict[str, Array], path: Path) -> None:
    h5py = extra("h5py", "hdf5")
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        about = np.frombuffer(to_json_text(schema).encode(), np.uint8)
        for name, array in {ABOUT: about, **arrays}.items():
            # In one piece, its room taken at once and without times of change: so it can be mapped, and the bytes of
            # the file depend on the samples alone.
            space = h5py.h5s.create_simple(array.shape)
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.CONTIGUOUS)
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            layout.set_obj_track_times(False)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(array.dtype, logical=True), space, layout)
            dataset = file[name]
            for start in range(0, len(array), 65536):
                dataset[start : start + 65536] = array[start : start + 65536]
