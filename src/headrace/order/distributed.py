"""All samples once, shuffled or in order, over any number of ranks."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from headrace.order.permutation import Permutation
from headrace.order.positions import Uneven
from headrace.order.sampler import Keys, PositionalSampler, length_of


class DistributedSampler(PositionalSampler):
    """Every key once, in an order that depends on (seed, epoch) alone; for one rank or many.

    `dataset` is a data set with a length, or the length. Takes constant memory and no time to start, whatever the
    length. `uneven` says what happens at the end if the length is no multiple of the world size: `"pad"` (a few samples
    twice), `"drop"` (a few left out), or `"keep"` (each exactly once, some ranks one more than others).
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        self.total = length_of(dataset)
        self.shuffle = shuffle

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`."""
        return Permutation(self.total, self._stream(0, epoch)).at(positions) if self.shuffle else positions

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "shuffle": self.shuffle}
