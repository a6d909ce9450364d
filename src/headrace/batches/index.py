"""Indices as workers get them: what a sampler gave, with what else is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace.core.spans import SpanKeys
from headrace.samplers.packed_batch import PackedBatch

Positions = Sequence[int] | npt.NDArray[np.int64]
"""The position in the epoch of each sample of a batch; empty: it is not known, and nothing is seeded."""


class Positioned(NamedTuple):
    """What an index sampler gave, with the position in the epoch of each sample in it."""

    index: Any
    positions: range | npt.NDArray[np.int64]


def can_be_cut(index: object) -> bool:
    """Tells whether an index has keys in an order, and the position of each."""
    return type(index) is Positioned and isinstance(index.index, (list, tuple, np.ndarray))


def part_of(index: Positioned, rows: Sequence[int]) -> Positioned:
    """Returns the index of some rows of a batch."""
    keys = [index.index[row] for row in rows]
    return Positioned(keys, [int(index.positions[row]) for row in rows])  # type: ignore[arg-type]  # any sequence will do


class Careful(NamedTuple):
    """An index whose batch killed a worker while all its samples were being made at once: now each is tried alone."""

    index: Any


def plain_index(index: object) -> Any:
    """Returns an index as the index sampler gave it."""
    if type(index) is Careful:
        return index.index
    return index


def packs_of(index: object) -> PackedBatch | None:
    """Returns the batch of packs that an index is; None: it is none."""
    if type(index) is Positioned:
        index = index.index
    if isinstance(index, PackedBatch):
        return index
    return None


def split(index: object, *, batched: bool) -> tuple[Sequence[Any], Sequence[int] | None]:
    """Returns the keys and the positions that an index holds, one of each for a sample; None: it has no positions."""
    positions = None
    if type(index) is Positioned:
        positions = list(map(int, index.positions))
        index = index.index

    # Keys of Python are what users write: `repr`, equality and isinstance(key, int) tell of them below.
    if isinstance(index, (np.ndarray, SpanKeys)):
        index = index.tolist()

    if batched:
        return list(cast(Iterable[Any], index)), positions
    return [index], positions
