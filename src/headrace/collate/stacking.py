"""Torch's default collation, with its rules and its registry, writing tensors straight into leased memory.

Only one step of torch's is replaced: the stacking of equal, ordinary tensors, which asks `empty` for its output. All
else (containers, registry, error texts) is torch's own code, and where the replaced step does not apply torch's own
runs instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.core.torch_internals import default_collate_fn_map, torch_collate, torch_collate_tensor

Empty = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Gives an uninitialised tensor of a shape and dtype."""


class SlotCollate:
    """`torch.utils.data.default_collate` whose tensors lie in memory from `empty`.

    With `in_worker`, tensors that cannot be stacked into a slot follow torch's rules for workers (the first sample's
    dtype decides), but in private memory rather than in `/dev/shm`.
    """

    def __init__(self, empty: Empty, *, in_worker: bool = False) -> None:
        self._empty = empty
        self._in_worker = in_worker

    def __call__(self, batch: list[Any]) -> Any:
        if default_collate_fn_map.get(torch.Tensor) is not torch_collate_tensor:
            return torch_collate(batch, collate_fn_map=default_collate_fn_map)
        registry = {**default_collate_fn_map, torch.Tensor: self.stack}
        return torch_collate(batch, collate_fn_map=registry)

    def stack(self, batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        """Stacks tensors along a new first dimension; the entry of torch's registry for tensors."""
        first = batch[0]
        if first.is_nested or first.layout is not torch.strided:
            refused: torch.Tensor = torch_collate_tensor(list(batch), collate_fn_map=collate_fn_map)
            return refused
        if not _stackable(batch):
            out = first.new().resize_(len(batch), *first.size()) if self._in_worker else None
            return torch.stack(tuple(batch), 0, out=out)
        out = self._empty((len(batch), *first.shape), first.dtype)
        return torch.stack(tuple(batch), 0, out=out)

    def install(self) -> None:
        """Puts `stack` into torch's registry, so that a user's own `collate_fn` that calls torch's default profits too.

        For worker processes only: the registry is global. A registry that the user has changed stays as it is.
        """
        if default_collate_fn_map.get(torch.Tensor) is torch_collate_tensor:
            default_collate_fn_map[torch.Tensor] = self.stack


def _stackable(batch: Sequence[torch.Tensor]) -> bool:
    """True if all are ordinary CPU tensors of one shape and dtype that need no gradient."""
    first = batch[0]
    if first.is_quantized or first.device.type != "cpu":
        return False
    shape, dtype = first.shape, first.dtype
    return all(
        type(item) is torch.Tensor
        and item.shape == shape
        and item.dtype is dtype
        and not (item.requires_grad or item.is_conj() or item.is_neg())
        for item in batch
    )
