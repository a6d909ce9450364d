"""Where a pipeline gets its samples: by columns where the dataset can give them so, otherwise one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Subset

from headrace.core.errors import DatasetError
from headrace.core.protocols import answers
from headrace.core.randomness.rng import enter_step
from headrace.data.formats.columns import Keys
from headrace.data.staged.layout import layout_of_schema
from headrace.data.staged.samples import Columns, Data, SampleRows
from headrace.data.stored import StoredDataset


class StepSource(Protocol):
    """Gives samples by their keys."""

    draws: bool
    """Whether it may draw random numbers for samples."""
    streams: int
    """How many random streams it takes of each sample: the first step of a pipeline comes behind them."""

    def load(self, keys: Sequence[Any] | Keys) -> Data:
        """Returns samples. keys: a list, or int64 [n]. Raises `IndexError` for those that are out of range."""


class StoredSource:
    """Stored data, column by column."""

    draws, streams = False, 0

    def __init__(self, dataset: StoredDataset) -> None:
        self.dataset = dataset
        self._node = layout_of_schema(dataset.block_schema)

    def load(self, keys: Sequence[Any] | Keys) -> Data:
        checked = self.dataset.checked(keys)
        block = self.dataset.block(checked)
        if block is None:
            return SampleRows(self.dataset.__getitems__(checked.tolist()))
        return Columns(self._node, block, len(checked))


class RowsSource:
    """Any map-style dataset; one whose attribute `draws` is `False` draws no random numbers."""

    streams = 1

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.draws = getattr(dataset, "draws", None) is not False

    def load(self, keys: Sequence[Any] | Keys) -> Data:
        if callable(several := getattr(self.dataset, "__getitems__", None)):
            if self.draws:
                enter_step(0, 0)
            together = list(several(list(map(_plain, keys))))
            if len(together) != len(keys):
                asked = f"{type(self.dataset).__name__}.__getitems__"
                what = "a dataset returned another number of samples"
                found = f"{len(together)} for {len(keys)} keys"
                raise DatasetError.about(what, place=asked, found=found, expected="one sample for each key")

            return SampleRows(together)

        samples = []
        for place, key in enumerate(keys):
            if self.draws:
                enter_step(place, 0)
            try:
                samples.append(self.dataset[_plain(key)])
            except Exception as error:
                error.add_note(f"headrace: raised by the dataset for sample {_plain(key)!r}")
                raise

        return SampleRows(samples)


class SubsetSource:
    """Some samples of another source."""

    def __init__(self, source: StepSource, indices: Sequence[int]) -> None:
        self.source = source
        self.indices = np.asarray(indices, np.int64)
        self.draws = source.draws
        self.streams = source.streams

    def load(self, keys: Sequence[Any] | Keys) -> Data:
        chosen: Keys = self.indices[np.asarray(keys, np.int64)]
        return self.source.load(chosen)


def _plain(key: object) -> object:
    if isinstance(key, np.generic):
        return key.item()
    return key


def copied(data: Data, *, columns: bool = False) -> Data:
    """Returns samples that may be changed without changing the dataset, which may have handed out its own.

    columns: copy columns as well, which no source hands out twice.
    """
    if isinstance(data, Columns):
        if columns:
            return Columns(data.node, data.block.take(np.arange(len(data))), len(data))
        return data

    try:
        return SampleRows(copy.deepcopy(data.samples))
    except (TypeError, NotImplementedError, RuntimeError):
        # What cannot be copied, such as an open file.
        return data


def source_of(dataset: Any) -> StepSource:
    """Returns what gives the samples of a dataset."""
    if type(dataset) is Subset:
        return SubsetSource(source_of(dataset.dataset), dataset.indices)
    if answers(dataset, "as_source"):
        source: StepSource = dataset.as_source()
        return source

    if type(dataset) is StoredDataset:
        return StoredSource(dataset)
    return RowsSource(dataset)
