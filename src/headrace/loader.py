"""`headrace.DataLoader`: torch's loader with another engine."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.engine.inline import InlineIterator
from headrace.engine.processes import ProcessIterator
from headrace.transport.arena import Arena
from headrace.transport.leases import LocalMemory

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader[T_co]):
    """`torch.utils.data.DataLoader` whose batches travel through leased memory.

    Takes torch's arguments, with torch's checks, defaults, orders and worker seeds. What differs is the way of a batch:
    default collation writes it once, into memory that was used before, and with workers the training process sees that
    very memory. A batch belongs to its user all the same: writable, and unchanged for as long as it is kept.

    The memory stays with the loader between epochs, about `(prefetch_factor + 2) * num_workers` batches (without
    workers: two), and goes with the loader.
    """

    _memory: LocalMemory | None = None
    _arena: Arena | None = None

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            if self._memory is None:
                self._memory = LocalMemory()
            return InlineIterator(self, self._memory)
        if os.name != "posix":
            return super()._get_iterator()  # descriptors cannot be handed to workers there
        self.check_worker_number_rationality()
        if self._arena is None:
            self._arena = Arena()
        return ProcessIterator(self, self._arena)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the memory out: a copied or unpickled loader makes its own."""
        state = self.__dict__.copy()
        state.pop("_memory", None)
        state.pop("_arena", None)
        return state
