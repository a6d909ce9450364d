"""What is known of the order of samples before it is drawn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler

from headrace.samplers.key_arrays import Keys, key_arrays
from headrace.samplers.sampler import PositionalSampler


def may_draw_ahead(index_sampler: Any, *, workers: bool) -> bool:
    """Tells whether indices may be drawn before they are needed.

    With workers torch does so, too. Without them, a sampler of the user's may draw from generators that the dataset
    draws from as well: drawn ahead, both would get other numbers.
    """
    if workers or isinstance(getattr(index_sampler, "sampler", index_sampler), PositionalSampler):
        return True
    return key_arrays(index_sampler) is not None


class KnownOrder:
    """The order of all epochs, where it is a function of their numbers."""

    def __init__(self, batch_sampler: BatchSampler, sampler: PositionalSampler) -> None:
        self._batch_sampler = batch_sampler
        self._sampler = sampler

    @classmethod
    def of(cls, index_sampler: Any) -> KnownOrder | None:
        """Returns the order that a sampler gives; None if it is not known ahead of its epoch."""
        if type(index_sampler) is not BatchSampler or not isinstance(index_sampler.sampler, PositionalSampler):
            return None
        return cls(index_sampler, index_sampler.sampler)

    def batches(self, epoch: int) -> Iterator[Keys]:
        """Returns the keys of the batches of an epoch. The sampler itself goes on as it was."""
        sampler = copy.copy(self._sampler)
        sampler.set_epoch(epoch)
        size = self._batch_sampler.batch_size
        return sampler.key_arrays(size, drop_last=self._batch_sampler.drop_last)

    def uses(self, epoch: int, keys: Keys) -> Keys | None:
        """Returns when keys are used in an epoch, counted in positions from the first epoch on; None: unknown."""
        positions = self._sampler.positions_of(epoch, keys)
        if positions is None:
            return None
        return positions + epoch * self._sampler.total
