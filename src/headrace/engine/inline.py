"""The whole system in one process, and the reference for every faster path: what this delivers, they deliver.

index = next(sampler) -> samples = dataset[...] -> batch = collate(samples) -> pinned batch
"""

from __future__ import annotations

from typing import Any

from headrace.collate.stacking import SlotCollate
from headrace.core.torch_internals import (
    IterDataPipe,
    MapDataPipe,
    TorchIterator,
    apply_sharding,
    torch_default_collate,
)
from headrace.device.pinning import pin
from headrace.fetch.fetcher import make_fetcher
from headrace.transport.leases import LocalMemory


class InlineIterator(TorchIterator):
    """One epoch without workers. Batches collated by default lie in leased memory and belong to the user."""

    def __init__(self, loader: Any, memory: LocalMemory) -> None:
        super().__init__(loader)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            apply_sharding(self._dataset, self._world_size, self._rank)
        collate = self._collate_fn
        if collate is torch_default_collate:
            collate = SlotCollate(memory)
        self._fetcher = make_fetcher(self._dataset_kind, self._dataset, self._auto_collation, collate, self._drop_last)

    def _next_data(self) -> Any:
        index = self._next_index()  # type: ignore[no-untyped-call]  # raises StopIteration at the end of the epoch
        batch = self._fetcher.fetch(index)
        return pin(batch, self._pin_memory_device) if self._pin_memory else batch
