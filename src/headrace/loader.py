"""`headrace.DataLoader`: torch's loader with another engine."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.engine.inline import InlineIterator
from headrace.engine.processes import ProcessIterator
from headrace.transport.arena import Arena
from headrace.transport.leases import LocalMemory
from headrace.transport.per_process import PerProcess

ARENA = PerProcess(Arena)
LOCAL_MEMORY = PerProcess(LocalMemory)

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader[T_co]):
    """`torch.utils.data.DataLoader` whose batches travel through leased memory.

    Takes torch's arguments, with torch's checks, defaults, orders and worker seeds. What differs is the way of a batch:
    default collation writes it once, into memory that was used before, and with workers the training process sees that
    very memory. A batch belongs to its user all the same: writable, and unchanged for as long as it is kept.

    That memory belongs to the process: all loaders use it in turn, and it goes with the last loader that was iterated.
    It holds the batches that are kept plus about `prefetch_factor + 1` per worker (without workers: two).
    """

    _memory: LocalMemory | None = None
    _arena: Arena | None = None

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            self._memory = LOCAL_MEMORY.get()
            return InlineIterator(self, self._memory)
        if os.name != "posix":
            return super()._get_iterator()  # descriptors cannot be handed to workers there
        self.check_worker_number_rationality()
        self._arena = ARENA.get()
        return ProcessIterator(self, self._arena)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the memory out: a copied or unpickled loader makes its own."""
        state = self.__dict__.copy()
        state.pop("_memory", None)
        state.pop("_arena", None)
        return state
