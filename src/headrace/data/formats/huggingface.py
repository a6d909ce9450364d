"""Hugging Face `datasets.Dataset`: an object in memory, or a folder of `save_to_disk`. Its Arrow data are not copied.

Needs the package (`pip install 'headrace[huggingface]'`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.errors import FormatError
from headrace.core.extras import extra
from headrace.core.files.regular_files import check_regular, read_side_file
from headrace.data.formats.arrow.columns import from_arrow, to_arrow
from headrace.data.formats.arrow.field_types import schema_from
from headrace.data.formats.arrow.ipc_ranges import open_table, read_table
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block, Column, Keys, Ragged
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.tables import TableReader
from headrace.data.formats.fetched_whole import NotByRanges
from headrace.data.formats.guards.arrow_messages import check_compressed
from headrace.data.formats.manifest import Manifest, commit_with_manifest, leads_outside, manifest_of
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import is_file, join, read_small
from headrace.storage.locations import is_url

NAME = "huggingface"
TITLE = "Hugging Face dataset"
FAILURES = (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError, ImportError,
            struct.error)  # fmt: skip


def claims(path: str) -> bool:
    return is_file(join(path, "state.json")) and is_file(join(path, "dataset_info.json"))


def refusal(field: Field) -> str | None:
    if field.kind == "fixed" and len(field.shape) > 1:
        if 0 not in field.shape:
            return None
        return "a dataset has no empty arrays"

    if field.shape and field.kind == "ragged":
        return "a dataset has no lists of arrays"
    if 0 in field.shape:
        return "a dataset has no empty arrays"
    if field.dtype.kind == "b" and (field.shape or field.kind != "fixed"):
        return "Arrow packs booleans of lists in bits"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest = manifest_of(path, NAME)
    if is_url(path):
        return _open_stored(path, manifest, trust)

    dataset = _from_disk(path, trust)
    # Arrow uses the offsets and lengths of a mapped file without a look: damaged ones would make it read elsewhere.
    try:
        dataset.data.table.validate()
    except FAILURES as error:
        raise unreadable(path, "Hugging Face dataset", error) from error

    reader = reader_of(dataset, path, trust)
    if manifest is not None and manifest.schema.names == reader.schema.names:
        reader.schema = manifest.schema
    return reader


def _open_stored(url: str, manifest: Manifest | None, trust: bool) -> Reader:
    """Opens a folder in a store. The package is not needed for that."""
    names = _check_state(url)
    info = join(url, "dataset_info.json")
    try:
        features = dict(json.loads(read_small(info)).get("features") or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(info, "description of a dataset", error) from error

    if not names:
        raise NotByRanges

    table = read_table([join(url, name) for name in names])
    schema = schema_from(table.schema.remove_metadata(), url)
    if manifest is not None and manifest.schema.names == schema.names:
        return open_table(NAME, url, table, trust, manifest.schema)

    fields = []
    for field in schema:
        feature = features.get(field.name)
        labels: tuple[str, ...] = ()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            labels = tuple(map(str, feature.get("names") or ()))
        fields.append(dataclasses.replace(field, labels=labels))

    return open_table(NAME, url, table, trust, Schema(tuple(fields)))


def _from_disk(path: str, trust: bool) -> Any:
    datasets = extra("datasets", "huggingface")
    names = _check_state(path)
    if not names:
        # The package cannot load it either.
        found = "no files of data: it was saved without rows"
        what = "a Hugging Face dataset is empty"
        expected = "at least one row, without which the package loads none either"
        raise FormatError.about(what, place=path, found=found, expected=expected, fix="save it with at least one row")

    try:
        # The library reads this file whatever it is: a pipe would be waited for, and a huge one fill the memory.
        read_side_file(Path(path) / "dataset_info.json")
        for name in names:
            check_regular(Path(path) / name)
            check_compressed(Path(path) / name, trust)
        return datasets.load_from_disk(path, keep_in_memory=False)
    except FAILURES as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(path, "Hugging Face dataset", error) from error
    except OSError as error:
        if error.filename is None and not isinstance(error, (PermissionError, FileNotFoundError)):
            raise unreadable(path, "Hugging Face dataset", error) from error
        raise


def _check_state(path: str) -> list[str]:
    """Returns the names of the files of data. No file that is named outside of the folder is opened."""
    place = join(path, "state.json")
    try:
        state = json.loads(read_small(place))
        names = []
        for data_file in state["_data_files"]:
            names.append(str(data_file["filename"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(place, "state of a dataset", error) from error

    outside = []
    for name in names:
        if leads_outside(name):
            outside.append(name)

    if outside:
        expected = "files in the folder"
        raise FormatError.about(
            "a dataset names files elsewhere",
            place=path,
            found=outside,
            expected=expected,
            fix="copy these files into the folder of the data, and save the dataset again",
        )

    # Written by old versions: rows in another order than that of the files.
    if state.get("_indices_data_files") and is_url(path):
        raise NotByRanges

    return names


def reader_of(dataset: Any, place: str | None = None, trust: bool = True) -> TableReader:
    """Returns a reader of a `datasets.Dataset`. Its table is used as it is; an order that it has is kept."""
    place = place or f"<{type(dataset).__name__} of {dataset.num_rows:,} rows>"
    table = dataset.data.table
    schema = schema_from(table.schema.remove_metadata(), place)
    fields = []
    for field in schema:
        feature = dataset.features.get(field.name)
        fields.append(dataclasses.replace(field, labels=tuple(getattr(feature, "names", ()))))

    schema = Schema(tuple(fields))
    load = functools.partial(_table_of, dataset)
    if dataset._indices is None:
        return TableReader(NAME, place, schema, dataset.num_rows, load, trust)

    # After `shuffle`, `select` or `filter` the table is the old one, and a column of row numbers says what is left.
    indices = dataset._indices.column(0)
    order = from_arrow(Field("indices", "fixed", np.dtype(np.uint64)), indices, place)
    return _Reordered(place, schema, len(indices), load, np.asarray(order).astype(np.int64))


def _table_of(dataset: Any) -> pa.Table:
    return dataset.data.table


class _Reordered(TableReader):
    """A table whose samples come in another order."""

    def __init__(self, place: str, schema: Schema, length: int, load: Callable[[], pa.Table], order: Keys) -> None:
        super().__init__(NAME, place, schema, length, load)
        self._order = order

    def column(self, name: str) -> None:
        """See `Reader.column`: there is no column in this order without a copy."""
        return

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        return super().fetch(self._order[keys], names)


class _HuggingFaceWriter:
    """Spools an Arrow stream, which `datasets` then saves in its own way."""

    def __init__(self, path: str, schema: Schema) -> None:
        datasets = extra("datasets", "huggingface")
        self._schema = schema
        self._length = 0
        features = {}
        for field in schema:
            features[field.name] = _feature(datasets, field)

        self._features = datasets.Features(features)
        self._target = AtomicTarget(path, folder=True)
        self._spool_target = AtomicTarget(f"{path}.spool", folder=False)
        self._stream = pa.ipc.new_stream(str(self._spool_target.path), self._features.arrow_schema)

    def append(self, block: Block) -> None:
        arrays = []
        for field in self._schema:
            arrays.append(_nested(field, block.columns[field.name]))

        self._stream.write(pa.RecordBatch.from_arrays(arrays, schema=self._features.arrow_schema))
        self._length += len(block)

    def seal(self) -> None:
        self._stream.close()
        datasets = extra("datasets", "huggingface")
        dataset = datasets.Dataset.from_file(str(self._spool_target.path), split=None)
        # Otherwise the library draws one at random, and the bytes would differ each time.
        dataset._fingerprint = "headrace"
        datasets.disable_progress_bars()
        try:
            dataset.save_to_disk(str(self._target.path), num_shards=1)
        finally:
            datasets.enable_progress_bars()

        # The dataset maps the spool, which is removed below.
        del dataset
        commit_with_manifest(self._target, NAME, self._length, self._schema)
        self._spool_target.abort()

    def abort(self) -> None:
        self._stream.close()
        self._spool_target.abort()
        self._target.abort()


def _feature(datasets: Any, field: Field) -> Any:
    """Returns how `datasets` calls the type of a field."""
    if field.kind == "bytes":
        return datasets.Value("large_binary")
    if field.kind == "text":
        return datasets.Value("large_string")

    element = datasets.Value(field.dtype.name)
    if field.kind == "ragged":
        return datasets.LargeList(element)
    if field.labels and field.dtype == np.int64 and not field.shape:
        return datasets.ClassLabel(names=list(field.labels))

    for length in reversed(field.shape):
        element = datasets.List(element, length=length)

    return element


def _nested(field: Field, column: Column) -> pa.Array:
    """Returns a column as Arrow's, arrays of several dimensions as lists of lists of fixed size."""
    if isinstance(column, Ragged) or not field.shape:
        return to_arrow(field, column)

    array = to_arrow(Field(field.name, "fixed", field.dtype), column.reshape(-1))
    for length in reversed(field.shape):
        array = pa.FixedSizeListArray.from_arrays(array, length)

    return array


def open_writer(path: str, schema: Schema) -> Writer:
    return _HuggingFaceWriter(path, schema)
