"""`headrace.open`: stored data, databases, and sources that never end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Unpack, overload

import numpy.typing as npt

from headrace.core.errors import wrong_argument
from headrace.data.formats import flat
from headrace.data.formats.columns.schema import wanted_names
from headrace.data.formats.given_objects import reader_of_object, rows_of
from headrace.data.formats.listed_files import open_listed
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import open_flat_reader, open_reader
from headrace.data.gather import RaggedAs
from headrace.data.live.dataset import LogDataset
from headrace.data.live.decoding import Decode, Decoding
from headrace.data.live.opening import LiveOptions, decodes_images, is_log, open_log, refuse_stored
from headrace.data.stacking import stacking_of
from headrace.data.stored import StoredDataset
from headrace.data.tokens import TokenWindows
from headrace.storage.stores.registry import cache_settings
from headrace.storage.stores.store_options import options_for


@overload
def open(
    uri: Any,
    columns: Iterable[str] | None = None,
    *,
    format: str | None = None,
    trust: bool = False,
    decode: bool = True,
    ragged: RaggedAs = "pad",
    stack: Mapping[str, Iterable[str]] | None = None,
    dtype: npt.DTypeLike | None = None,
    window: None = None,
    stride: None = None,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    query: str | None = None,
    table: str | None = None,
    key: str | None = None,
) -> StoredDataset:
    """Opens stored data as their samples."""


@overload
def open(
    uri: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike,
    window: int,
    stride: int | None = None,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> TokenWindows:
    """Opens a flat file of tokens as windows."""


@overload
def open(
    uri: str,
    *,
    decode: Decoding | Decode,
    ragged: RaggedAs = "pad",
    options: Mapping[str, object] | None = None,
    **live: Unpack[LiveOptions],
) -> LogDataset:
    """Opens a source that never ends."""


def open(  # noqa: PLR0913 - the ways in which data may be wanted
    uri: Any,
    columns: Iterable[str] | None = None,
    *,
    format: str | None = None,
    trust: bool = False,
    decode: bool | Decoding | Decode = True,
    ragged: RaggedAs = "pad",
    stack: Mapping[str, Iterable[str]] | None = None,
    dtype: npt.DTypeLike | None = None,
    window: int | None = None,
    stride: int | None = None,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    query: str | None = None,
    table: str | None = None,
    key: str | None = None,
    **live: Unpack[LiveOptions],
) -> StoredDataset | TokenWindows | LogDataset:
    """Opens stored data as a map-style dataset; `.stream()` of it is the iterable one.

    uri: a file, a folder, a pattern (`train-*.parquet`, `shard-{000..011}.tar`), each on this machine or as a URL
        (`s3://bucket/train/*.parquet`); a list of files of one format, which are read in its order; a
        `datasets.Dataset`; or a database: its URL, an engine of SQLAlchemy, or a function that connects (docs/sql.md).
    columns: their names, in the order wanted; only these are read.
    format: its name, where it cannot be told from the data.
    trust: also read what could execute code when it is opened (pickles), or unfolds to far more than is stored. Only
        for data of people whom you trust.
    decode: images of a column named like one (`image`, `jpg`, `png`, ...) come as arrays [height, width, 3] of uint8.
    ragged: how a batch holds samples of different lengths: `"pad"` (a tuple of values, filled up with zeros, and
        lengths), `"nested"` (torch's jagged nested tensor) or `"list"`.
    stack: columns of single numbers of one type as one: with `{"x": ["a", "b", "c"]}`, a sample has an array `x` [3],
        and a batch a tensor `x` [batch, 3], in this order, in place of the three columns.
    dtype: of a flat file of numbers without a head (nanoGPT's `train.bin`): its one column is `tokens`.
    window, stride: with dtype, give windows of so many tokens, one each `stride` tokens (`window` if not given), as
        `inputs`, and the same one token later as `targets`; see `TokenWindows`. Else a `StoredDataset` is returned.
    options: of the store that a URL names, such as credentials and its endpoint, where they are not in the environment;
        see docs/storage.md.
    cache_dir: of a URL: a folder on this machine that keeps what was fetched, for all processes and later runs; the
        environment variable HEADRACE_CACHE_DIR if it is not given. Without either, nothing is written to the disk.
    cache_limit: of the bytes in that folder, such as "200GB"; what is needed last goes first. None: no limit.
    query, table, key: of a database: a SELECT, or a table's name, and the unique column that gives the order.

    Costs milliseconds whatever the size, unless the data must be parsed (text) or listed (folders of files). Raises
    `DatasetNotFoundError`, `FormatError` (damaged, or of an unknown format), `UsageError`, or `OSError` with the path.
    """
    if ragged not in ("pad", "nested", "list"):
        raise wrong_argument("ragged", ragged, "'pad', 'nested' or 'list'", place="headrace.open")

    if is_log(uri, live):
        stored = {
            "format": format, "trust": trust or None, "stack": stack, "dtype": dtype, "window": window,
            "stride": stride, "cache_dir": cache_dir, "cache_limit": cache_limit,
        }  # fmt: skip
        refuse_stored(uri, stored)
        table_of = {"query": query, "table": table, "key": key}
        return open_log(uri, columns, decode, ragged, options, table_of, live)
    decode = decodes_images(uri, decode, live)
    columns = wanted_names(columns)
    rows = rows_of(uri, columns, query, table, key)
    if rows is not None:
        return _stored(rows, columns, stack, decode=decode, ragged=ragged)

    options = options_for(uri, options)
    if dtype is not None or window is not None or stride is not None:
        flat.check_asked(uri, columns, format, dtype, window, stride)
        flat.refuse_stack(stack)
        cache = cache_settings(cache_dir, cache_limit, uri)
        reader = open_flat_reader(uri, dtype, options, cache)
        if window is None:
            return StoredDataset(reader, reader.schema, decode=True, ragged="pad", options=options)
        return TokenWindows(reader, window, stride, options)

    listed = None
    if isinstance(uri, (str, os.PathLike)):
        cache = cache_settings(cache_dir, cache_limit, uri)
        reader = open_reader(uri, format=format, trust=trust, columns=columns, options=options, cache=cache)
    elif isinstance(uri, (list, tuple)):
        cache = cache_settings(cache_dir, cache_limit, next(iter(uri), None))
        listed, reader = open_listed(uri, format=format, trust=trust, columns=columns, options=options, cache=cache)
    else:
        reader = reader_of_object(uri)

    return _stored(reader, columns, stack, decode=decode, ragged=ragged, listed=listed, options=options)


def _stored(reader: Reader, columns: Iterable[str] | None, stack: object, **words: Any) -> StoredDataset:
    """Returns the samples of a reader. words: those of `StoredDataset`."""
    schema = reader.schema.only(columns, reader.place)
    stacking = stacking_of(schema, stack, reader.place)
    if stacking is not None:
        schema = stacking.schema

    return StoredDataset(reader, schema, stacking=stacking, **words)
