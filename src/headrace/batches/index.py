"""Indices as workers get them: what a sampler gave, with what else is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Positioned(NamedTuple):
    """What an index sampler gave, with the position in the epoch of each sample in it."""

    index: Any
    positions: range | npt.NDArray[np.int64]


class Careful(NamedTuple):
    """An index whose batch killed a worker while all its samples were being made at once: now each is tried alone."""

    index: Any


def plain_index(index: Any) -> Any:
    """Returns an index as the index sampler gave it."""
    if type(index) is Careful:
        return index.index
    return index


def split(index: Any, *, batched: bool) -> tuple[Sequence[Any], Sequence[int] | None]:
    """Returns the keys and the positions that an index holds, one of each for a sample; None: it has no positions."""
    positions = None
    if type(index) is Positioned:
        index, positions = index.index, [int(position) for position in index.positions]
    if isinstance(index, np.ndarray):
        index = index.tolist()
    return (list(index) if batched else [index]), positions
