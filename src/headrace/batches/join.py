"""Joins the parts of a batch that several workers made: the same batch, bit for bit, as one worker would have made.

Each part is what torch's default collation makes of some of the samples. Stacking the samples of a batch and joining
the stacks of its parts give the same tensor if the parts have the same type and shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.core.plain_tensors import is_plain

Part = tuple[Sequence[int], Any]
"""Which rows of the batch, and what they were collated to."""

TEXT = (str, bytes)


class NotAlikeError(Exception):
    """The parts cannot be joined: only all samples together say what the batch is. Never reaches a user."""


def join(parts: Sequence[Part], count: int) -> Any:
    """Returns a batch of `count` samples. Each row must be in one part. Raises `NotAlikeError`."""
    first = parts[0][1]
    kind = type(first)
    if any(type(batch) is not kind for _, batch in parts):
        raise NotAlikeError
    if kind is torch.Tensor:
        return _tensor(parts, count)
    if kind is dict:
        return _dict(parts, count)
    if kind in (list, tuple) and all(type(value) in TEXT for _, batch in parts for value in batch):
        return kind(_texts(parts, count))
    if kind in (list, tuple):
        return kind(_columns(parts, count))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*_columns(parts, count))
    raise NotAlikeError


def _tensor(parts: Sequence[Part], count: int) -> torch.Tensor:
    first = parts[0][1]
    for rows, tensor in parts:
        alike = tensor.dtype is first.dtype and tensor.shape[1:] == first.shape[1:]
        if not is_plain(tensor) or not alike or not tensor.dim() or len(tensor) != len(rows):
            raise NotAlikeError

    joined: torch.Tensor = first.new_empty((count, *first.shape[1:]))
    for rows, tensor in parts:
        if _is_run(rows):
            joined[rows[0] : rows[-1] + 1].copy_(tensor)
        else:
            joined.index_copy_(0, torch.tensor(list(rows)), tensor)
    return joined


def _is_run(rows: Sequence[int]) -> bool:
    return all(row == rows[0] + place for place, row in enumerate(rows))


def _dict(parts: Sequence[Part], count: int) -> dict[Any, Any]:
    names = list(parts[0][1])
    if any(list(batch) != names for _, batch in parts):
        raise NotAlikeError
    return {name: join([(rows, batch[name]) for rows, batch in parts], count) for name in names}


def _columns(parts: Sequence[Part], count: int) -> list[Any]:
    width = len(parts[0][1])
    if any(len(batch) != width for _, batch in parts):
        raise NotAlikeError
    return [join([(rows, batch[column]) for rows, batch in parts], count) for column in range(width)]


def _texts(parts: Sequence[Part], count: int) -> list[Any]:
    # A sample that is an empty list makes an empty list of columns.
    if all(not batch for _, batch in parts):
        return []
    joined: list[Any] = [None] * count
    for rows, texts in parts:
        if len(texts) != len(rows):
            raise NotAlikeError
        for row, text in zip(rows, texts, strict=True):
            joined[row] = text
    return joined
