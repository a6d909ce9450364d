"""How long documents are, for samplers that pack or sort them: read from what is stored, or measured once and kept."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch

from headrace.core.errors import SampleError, UsageError
from headrace.core.ragged import Ragged
from headrace.data.formats.columns import Array
from headrace.data.formats.columns.schema import Field
from headrace.data.staged.cache import Stale
from headrace.data.staged.staged import Staged
from headrace.data.staged.steps import step
from headrace.data.stored import StoredDataset

LONGEST = np.iinfo(np.int32).max
LENGTH = "length"


def lengths_of(
    dataset: Any,
    column: str | int | None = "input_ids",
    cache: str | os.PathLike[str] | None = None,
    *,
    stale: Stale = "error",
) -> Array:
    """Tells how long the documents of a dataset are, for `PackedBatchSampler` and its siblings.

    Stored data whose samples lie at offsets are not read: the offsets say it. A column with one whole number for each
    sample holds the lengths themselves. Everything else is measured: each sample is read once, by processes in the
    background, with a progress bar; `cache` keeps what was found for the next run.

    Args:
        dataset: any map-style dataset.
        column: of the samples, which are mappings (or a place, in tuples): that of the tokens, or that of the lengths;
            None: samples are the tokens.
        cache: a folder that keeps measured lengths, as in `Staged`; None: nothing is kept.
        stale: what to do with a folder that other data or steps have made: `"error"`, or `"rebuild"`.

    Returns:
        Lengths in the order of the dataset, int32 [len(dataset)]; new memory.

    Raises:
        UsageError: there is no such column, or it has no lengths.
        StaleCacheError: the folder holds the lengths of other data or steps.
        SampleError: a sample has no length.

    Examples:
        >>> headrace.lengths_of([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
        array([3, 1], dtype=int32)
    """
    stored = dataset
    if isinstance(dataset, Staged) and dataset.cached is not None and not dataset.get_item_transform:
        stored = dataset.stored
    if isinstance(stored, StoredDataset) and isinstance(column, str) and column in stored.reader.schema.names:
        found = _read(stored, column)
        if found is not None:
            return found
    return _measured(dataset, column, cache, stale)


class Length:
    """The step that measures a sample."""

    def __init__(self, column: str | int | None) -> None:
        self.column = column

    def __call__(self, sample: Any) -> dict[str, int]:
        part = sample
        try:
            if self.column is not None:
                part = sample[self.column]
        except (KeyError, IndexError, TypeError) as error:
            found = f"a {type(sample).__name__}"
            if isinstance(sample, dict):
                found = f"a sample with {', '.join(map(repr, sample))}"
            fix = "name the column of the tokens: lengths_of(dataset, 'tokens'); None, where samples are the tokens"
            raise SampleError.about(
                "a sample has no such column", found=found, expected=repr(self.column), fix=fix
            ) from error

        if isinstance(part, Mapping):
            raise _no_tokens(self.column, "a mapping")
        if isinstance(part, (str, bytes)):
            raise _no_tokens(self.column, "text")
        # An array or a tensor without dimensions is a number: it has no length.
        if isinstance(part, Sized) and not (isinstance(part, (np.ndarray, torch.Tensor)) and part.ndim == 0):
            return {LENGTH: len(part)}
        try:
            length = int(part)
        except (TypeError, ValueError) as error:
            raise self._no_length(part) from error
        if length != part or isinstance(part, bool):
            raise self._no_length(part)
        return {LENGTH: length}

    def _no_length(self, part: Any) -> SampleError:
        place = f"column {self.column!r}"
        expected = "tokens, or a whole number"
        return SampleError.about("a sample has no length", place=place, found=repr(part), expected=expected)


def _read(stored: StoredDataset, column: str) -> Array | None:
    """Returns the lengths that a stored column tells; None: it must be measured."""
    field = stored.reader.schema[column]
    if field.kind in ("text", "bytes"):
        raise _no_tokens(column, field.kind)
    if field.kind == "fixed" and field.shape:
        return np.full(len(stored), field.shape[0], np.int32)

    whole = stored.reader.column(column)
    if len(stored) != len(stored.reader) or not _tells_lengths(field):
        return None
    if isinstance(whole, Ragged):
        return _as_lengths(whole.lengths)
    if whole is not None:
        return _as_lengths(np.asarray(whole))
    parts = []
    for block in stored.reader.blocks():
        found = stored.reader.fetch(np.arange(block.start, block.stop), [column]).columns[column]
        parts.append(_as_lengths(found.lengths if isinstance(found, Ragged) else np.asarray(found)))
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _tells_lengths(field: Field) -> bool:
    return field.kind == "ragged" or field.dtype.kind in "iu"


def _as_lengths(numbers: Array) -> Array:
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() <= LONGEST:
        found = f"from {numbers.min():,} to {numbers.max():,}"
        raise UsageError.about("these are no lengths", found=found, expected=f"whole numbers from 0 to {LONGEST:,}")
    return numbers.astype(np.int32)


def _measured(dataset: Any, column: str | int | None, cache: str | os.PathLike[str] | None, stale: Stale) -> Array:
    length = step(Length(column), name="length", random=False)
    kept = Staged.of(dataset).with_step(length).with_cache("memory" if cache is None else cache, stale=stale).stored
    if kept is None:
        return np.zeros(0, np.int32)
    return _as_lengths(np.asarray(kept.reader.column(LENGTH)))


def _no_tokens(column: str | int | None, kind: str) -> UsageError:
    fix = "turn it into tokens first (dataset.map), and measure those"
    expected = "tokens, or the number of them"
    return UsageError.about(
        "this column has no tokens", place=f"column {column!r}", found=kind, expected=expected, fix=fix
    )
