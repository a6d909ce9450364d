"""Default collation of Python's own numbers: what `torch.tensor` makes of a list of them, in a quarter of its time.

`torch.tensor` looks at each number twice, for its type and for its value. An `array.array` converts them in C, where
all are of one type.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.core.torch_internals import torch_collate_float, torch_collate_int

Rule = Callable[..., Any]
"""How torch collates values of one type: `rule(batch, collate_fn_map=rules)`."""

Rules = dict[type | tuple[type, ...], Rule]
"""Rules by the type, or the tuple of types, that they are for: torch's registry."""

ONLY_INTS = {int}
ONLY_FLOATS = {float}


def collate_ints(batch: Sequence[int], *, collate_fn_map: Rules | None = None) -> torch.Tensor:
    """Returns int64 [n]. Of anything but plain integers that 64 bits hold, what torch's own rule makes of it."""
    # Not isinstance: a bool is an int, and torch makes another type of it.
    if set(map(type, batch)) == ONLY_INTS:
        try:
            numbers = array("q", batch)
        except OverflowError:
            return _by_torch(torch_collate_int, batch, collate_fn_map)
        return _tensor(numbers, torch.int64)

    return _by_torch(torch_collate_int, batch, collate_fn_map)


def collate_floats(batch: Sequence[float], *, collate_fn_map: Rules | None = None) -> torch.Tensor:
    """Returns float64 [n]. Of anything but plain floats, what torch's own rule makes of it."""
    if set(map(type, batch)) == ONLY_FLOATS:
        return _tensor(array("d", batch), torch.float64)
    return _by_torch(torch_collate_float, batch, collate_fn_map)


def _tensor(numbers: array[Any], dtype: torch.dtype) -> torch.Tensor:
    """Returns a copy in memory of torch's own, which can be resized as that of any other tensor."""
    # `torch.frombuffer` alone would leave the tensor in the array's memory, which torch cannot resize.
    return torch.frombuffer(numbers, dtype=dtype).clone()


def _by_torch(rule: Rule, batch: Sequence[float], collate_fn_map: Rules | None) -> torch.Tensor:
    made: torch.Tensor = rule(batch, collate_fn_map=collate_fn_map)
    return made
