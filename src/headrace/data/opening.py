"""`headrace.open` and `headrace.open_tokens`: stored data and databases, all of which have an end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Never, overload

import numpy.typing as npt

from headrace.core.errors import wrong_argument
from headrace.data.doors import refuse_unknown
from headrace.data.formats.columns.schema import wanted_names
from headrace.data.formats.registry import open_flat_reader
from headrace.data.gather import RaggedAs
from headrace.data.given_data import Wanted, given_data
from headrace.data.live.schemes import refuse_log
from headrace.data.stacking import stacking_of
from headrace.data.stored import StoredDataset
from headrace.data.tokens import TokenWindows
from headrace.storage.stores.registry import cache_settings
from headrace.storage.stores.store_options import options_for


def open(  # noqa: PLR0913 - the ways in which data may be wanted
    uri: Any,
    columns: Iterable[str] | None = None,
    *,
    format: str | None = None,
    trust: bool = False,
    decode: bool = True,
    ragged: RaggedAs = "pad",
    stack: Mapping[str, Iterable[str]] | None = None,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    query: str | None = None,
    table: str | None = None,
    key: str | None = None,
    **others: Never,
) -> StoredDataset:
    """Opens stored data as a map-style dataset; `.stream()` of it is the iterable one.

    Files of tokens without a head are for `headrace.open_tokens`, and sources that never end for `headrace.follow`.
    Costs milliseconds whatever the size, unless the data must be parsed (text) or listed (folders of files).

    Args:
        uri: a file, a folder, a pattern (`train-*.parquet`, `shard-{000..011}.tar`), each on this machine or as a URL
            (`s3://bucket/train/*.parquet`); a list of files of one format, which are read in its order; a
            `datasets.Dataset`; or a database: its URL, an engine of SQLAlchemy, or a function that connects
            (docs/howto/sql.md).
        columns: their names, in the order wanted; only these are read.
        format: its name, where it cannot be told from the data.
        trust: also read what could execute code when it is opened (pickles), or unfolds to far more than is stored.
            Only for data of people whom you trust.
        decode: images of a column named like one (`image`, `jpg`, `png`, ...) come as arrays [height, width, 3] of
            uint8.
        ragged: how a batch holds samples of different lengths: `"pad"` (a tuple of values, filled up with zeros, and
            lengths), `"nested"` (torch's jagged nested tensor) or `"list"`.
        stack: columns of single numbers of one type as one: with `{"x": ["a", "b", "c"]}`, a sample has an array `x`
            [3], and a batch a tensor `x` [batch, 3], in this order, in place of the three columns.
        options: of the store that a URL names, such as credentials and its endpoint, where they are not in the
            environment; see docs/howto/credentials.md.
        cache_dir: of a URL: a folder on this machine that keeps what was fetched, for all processes and later runs; the
            environment variable HEADRACE_CACHE_DIR if it is not given. Without either, nothing is written to the disk.
        cache_limit: of the bytes in that folder, such as "200GB"; what is needed last goes first. None: no limit.
        query: of a database: a SELECT.
        table: of a database: a table's name, in place of `query`.
        key: of a database: the unique column that gives the order.

    Returns:
        Samples that are dicts of their columns.

    Raises:
        DatasetNotFoundError: there are no such data.
        FormatError: the data are damaged, or of an unknown format.
        UsageError: wrong arguments.
        OSError: the data cannot be read; the path is in it.

    Examples:
        >>> np.save("x.npy", np.arange(6, dtype=np.float32))
        >>> next(iter(headrace.DataLoader(headrace.open("x.npy"), batch_size=3)))
        {'data': tensor([0., 1., 2.])}
    """
    refuse_unknown("open", others)
    refuse_log(uri)
    if ragged not in ("pad", "nested", "list"):
        raise wrong_argument("ragged", ragged, "'pad', 'nested' or 'list'", place="headrace.open")
    if not isinstance(format, str | None):
        raise wrong_argument("format", format, "the name of a format, or None", place="headrace.open")
    for name, value in (("decode", decode), ("trust", trust)):
        if not isinstance(value, bool):
            raise wrong_argument(name, value, "True or False", place="headrace.open")

    columns = wanted_names(columns)
    wanted = Wanted(columns, format, trust, options, cache_dir, cache_limit)
    reader, used, listed = given_data(uri, query, table, key).read_as(wanted)
    schema = reader.schema.only(columns, reader.place)
    stacking = stacking_of(schema, stack, reader.place)
    if stacking is not None:
        schema = stacking.schema
    return StoredDataset(reader, schema, stacking=stacking, decode=decode, ragged=ragged, listed=listed, options=used)


@overload
def open_tokens(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike,
    window: int,
    stride: int | None = None,
    *,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> TokenWindows:
    """As windows."""


@overload
def open_tokens(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike,
    *,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> StoredDataset:
    """As single tokens."""


def open_tokens(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike,
    window: int | None = None,
    stride: int | None = None,
    *,
    options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    **others: Never,
) -> TokenWindows | StoredDataset:
    """Opens a flat file of tokens without a head, such as nanoGPT's `train.bin`, as windows of so many tokens.

    For tokens in other forms, `headrace.open(path).windows(length, stride)` cuts a column.

    Args:
        path: on this machine, or a URL.
        dtype: of the tokens, such as "uint16"; nothing in the file says it.
        window: tokens of a sample, which has them as `inputs`, and the same ones one token later as `targets`; see
            `headrace.types.TokenWindows`. Without it, a sample is one token, in the column `tokens`.
        stride: tokens from the beginning of one window to that of the next; `window` if it is not given.
        options: as for `headrace.open`.
        cache_dir: as for `headrace.open`.
        cache_limit: as for `headrace.open`.

    Returns:
        Windows, or single tokens without `window`.

    Raises:
        DatasetNotFoundError: there is no such file.
        FormatError: the file is damaged, or has fewer tokens than a window needs.
        UsageError: wrong arguments.
        OSError: the file cannot be read; the path is in it.

    Examples:
        >>> np.arange(9, dtype=np.uint16).tofile("train.bin")
        >>> headrace.open_tokens("train.bin", "uint16", window=4)[1]
        {'inputs': array([4, 5, 6, 7]), 'targets': array([5, 6, 7, 8])}
    """
    refuse_unknown("open_tokens", others)
    if not isinstance(path, (str, os.PathLike)):
        raise wrong_argument("path", path, "a path or a URL", place="headrace.open_tokens")
    refuse_log(path)
    options = options_for(path, options)
    reader = open_flat_reader(path, dtype, options, cache_settings(cache_dir, cache_limit, path))
    if window is not None:
        return TokenWindows(reader, window, stride, options)
    if stride is not None:
        raise wrong_argument("stride", stride, "nothing without window=", place="headrace.open_tokens")
    return StoredDataset(reader, reader.schema, decode=True, ragged="pad", options=options)
