"""Torch's default collation, with its rules and its registry, writing tensors straight into leased memory.

Two steps of torch's are replaced: the stacking of equal, ordinary tensors, which asks `BatchMemory` for its output, and
that of plain numbers (`scalars`). All else (containers, registry, error texts) is torch's own code, and where the
replaced steps do not apply torch's own run instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from headrace.batches.collate_scalars import Rule, Rules, collate_floats, collate_ints
from headrace.core.batch_memory import BatchMemory
from headrace.core.torch_internals import (
    default_collate_fn_map,
    torch_collate,
    torch_collate_float,
    torch_collate_int,
    torch_collate_tensor,
)

PLAIN = {torch.Tensor}
REGISTRY = {kind: rule for kind, rule in default_collate_fn_map.items() if kind is not torch.Tensor}
"""Torch's rules for all but tensors, before anybody has changed them; libraries add rules for their own types."""

USUAL: tuple[Any, ...] = ({}, [], (), "", b"", 0, 0.0, np.empty(0), np.float32(0))
"""What samples are made of, if not of tensors: torch has rules for these beside its registry."""

KNOWN = frozenset(default_collate_fn_map)
"""The types for which torch has rules. Neither a dictionary nor a tuple nor a list is one of them."""

SCALARS = {int, float, str}
"""What holds no tensors: its rule is called without looking at any other."""

DTYPE = attrgetter("dtype")
REQUIRES_GRAD = attrgetter("requires_grad")


class SlotCollate:
    """`torch.utils.data.default_collate` whose large tensors lie in `memory`.

    With `in_worker`, other tensors follow torch's rules for workers (the first sample's dtype decides), but in private
    memory rather than in `/dev/shm`.
    """

    def __init__(self, memory: BatchMemory, *, in_worker: bool = False) -> None:
        self._memory = memory
        self._in_worker = in_worker

    @property
    def memory(self) -> BatchMemory | None:
        """Where batches are made; None once the user has put something else into torch's registry."""
        if default_collate_fn_map.get(torch.Tensor) not in (torch_collate_tensor, self.stack):
            return None
        for kind, rule in REGISTRY.items():
            if default_collate_fn_map.get(kind) is not rule:
                return None

        # Rules that libraries add for types of their own change no batch of plain values. A rule for `dict`, which
        # torch has none for, would.
        for kind in set(default_collate_fn_map) - set(REGISTRY) - PLAIN:
            if any(isinstance(value, kind) for value in USUAL):
                return None

        return self._memory

    def __call__(self, batch: list[Any]) -> Any:
        kind = type(batch[0])
        if kind in SCALARS and kind in default_collate_fn_map:
            # Called as torch calls it, without a copy of the registry: a batch of labels takes some microseconds.
            rule = _faster(default_collate_fn_map[kind])
            return rule(batch, collate_fn_map=default_collate_fn_map)
        registry = self._registry()
        if default_collate_fn_map.keys() == KNOWN:
            return _collate(batch, registry)
        return torch_collate(batch, collate_fn_map=registry)

    def _registry(self) -> Rules:
        """Returns torch's registry of rules with those of this module, except where the user has put in others."""
        registry = dict(default_collate_fn_map)
        if registry.get(torch.Tensor) is torch_collate_tensor:
            registry[torch.Tensor] = self.stack

        for kind in (int, float):
            if kind in registry:
                registry[kind] = _faster(registry[kind])

        return registry

    def stack(self, batch: Sequence[torch.Tensor], *, collate_fn_map: Rules | None = None) -> torch.Tensor:
        """Stacks tensors along a new first dimension; the entry of torch's registry for tensors."""
        # Sparse and nested tensors: torch has an error, or a rule, for them.
        first = batch[0]
        if first.layout is not torch.strided or first.is_nested:
            refused: torch.Tensor = torch_collate_tensor(list(batch), collate_fn_map=collate_fn_map)
            return refused

        out = None
        if first.nbytes * len(batch) >= self._memory.smallest and self._may_write_into_a_slot(batch):
            out = self._memory.empty((len(batch), *first.shape), first.dtype)
        # torch's own rule would take shared memory here, for a batch that is sent as it is. Ours is copied into a slot
        # or into the message, so that private memory will do.
        elif self._in_worker:
            out = first.new().resize_(len(batch), *first.size())

        return torch.stack(tuple(batch), 0, out=out)

    def _may_write_into_a_slot(self, batch: Sequence[torch.Tensor]) -> bool:
        """True if stacking into memory of the first tensor's dtype is what torch does here too.

        In a worker torch always writes into such memory. Elsewhere it promotes mixed dtypes and keeps gradients.
        """
        first = batch[0]
        if first.is_quantized or first.device.type != "cpu" or set(map(type, batch)) != PLAIN:
            return False
        if self._in_worker:
            return True
        return len(set(map(DTYPE, batch))) == 1 and not any(map(REQUIRES_GRAD, batch))

    def install(self) -> None:
        """Puts `stack` into torch's registry, so that a user's own `collate_fn` that calls torch's default profits too.

        For worker processes only: the registry is global. A registry that the user has changed stays as it is.
        """
        if default_collate_fn_map.get(torch.Tensor) is torch_collate_tensor:
            default_collate_fn_map[torch.Tensor] = self.stack


def _collate(batch: Sequence[Any], registry: Rules) -> Any:
    """Collates as torch does, by a registry of rules for the `KNOWN` types.

    Dictionaries, tuples and lists are taken apart here: torch first compares each with all types that have rules, and
    copies it.
    """
    first = batch[0]
    kind = type(first)
    rule = registry.get(kind)
    if rule is not None:
        return rule(batch, collate_fn_map=registry)
    if kind is dict:
        return {key: _collate([sample[key] for sample in batch], registry) for key in first}
    if kind in (tuple, list) and len(set(map(len, batch))) == 1:
        return [_collate(samples, registry) for samples in zip(*batch, strict=True)]
    return torch_collate(batch, collate_fn_map=registry)


def _faster(rule: Rule) -> Rule:
    """Returns the rule of this package for numbers in the place of torch's; any other rule as it is."""
    if rule is torch_collate_int:
        return collate_ints
    if rule is torch_collate_float:
        return collate_floats
    return rule
