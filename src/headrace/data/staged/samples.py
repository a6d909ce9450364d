"""Several samples, one by one or column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.data.formats.columns import Block, Keys
from headrace.data.staged.layout import Node
from headrace.data.staged.sample_columns import Place, columns_of_samples, samples_of
from headrace.faults.bad_sample import path_of


@dataclass(frozen=True)
class SampleRows:
    """Samples, one by one."""

    samples: list[Any]

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class Columns:
    """Samples, column by column."""

    node: Node
    block: Block
    count: int
    lists: dict[str, list[Any]] = field(default_factory=dict)
    """Columns of strings as lists, by their names, where somebody has made these already."""

    def __len__(self) -> int:
        return self.count


Data = SampleRows | Columns


def named(keys: Sequence[Any] | Keys, dataset: object = None) -> Place:
    """Returns what names samples by their keys, and by their files where the dataset tells them."""

    def place(index: int) -> str:
        key = keys[index]
        if isinstance(key, np.generic):
            key = key.item()
        path = path_of(dataset, key)
        if path is None:
            return f"sample {key!r}"
        return f"sample {key!r}, {path}"

    return place


def as_rows(data: Data) -> list[Any]:
    """Returns samples one by one."""
    if isinstance(data, SampleRows):
        return data.samples
    return samples_of(data.node, data.block, data.count)


def as_columns(data: Data, place: Place) -> Columns:
    """Returns samples, of which there is at least one, column by column. Raises `SampleError`."""
    if isinstance(data, Columns):
        return data
    return Columns(*columns_of_samples(data.samples, place), len(data))
