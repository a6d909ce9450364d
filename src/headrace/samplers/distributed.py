"""All samples once, shuffled or in order, over any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.permutation import Permutation
from headrace.samplers.positions import Uneven
from headrace.samplers.sampler import Keys, PositionalSampler, digest_of, length_of


class WholeSampler(PositionalSampler):
    """Every key once, in an order that depends only on seed and epoch: what `DistributedSampler` splits.

    A loader with a seed and no shard has it: frameworks may split that order over the ranks.
    """

    takes_all_alike = True
    name = "DistributedSampler"

    def __init__(
        self,
        dataset: Sized | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
        exclude: Sequence[int] | Keys = (),
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        excluded = np.unique(np.asarray(exclude, np.int64))
        excluded = excluded[(excluded >= 0) & (excluded < length_of(dataset))]
        self.total = length_of(dataset) - len(excluded)
        self.shuffle = shuffle
        self.excluded = excluded
        # How many samples stay that come before each of those left out: by it numbers of samples skip them.
        self._before = excluded - np.arange(len(excluded))

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        if self.shuffle:
            numbers = Permutation(self.total, self._stream(0, epoch)).at(positions)
        else:
            numbers = positions

        if len(self.excluded):
            numbers = numbers + np.searchsorted(self._before, numbers, side="right")
        return numbers

    def positions_of(self, epoch: int, keys: Keys) -> Keys | None:
        numbers = keys - np.searchsorted(self.excluded, keys)
        if not self.shuffle:
            return numbers
        return Permutation(self.total, self._stream(0, epoch)).inverse(numbers)

    def _identity(self) -> dict[str, Any]:
        if len(self.excluded):
            excluded = {"excluded": digest_of(self.excluded)}
        else:
            excluded = {}
        return {**super()._identity(), "shuffle": self.shuffle, **excluded}


class DistributedSampler(WholeSampler, SplitOverRanks):
    """Every key once, in an order that depends only on seed and epoch, for one rank or many.

    It takes constant memory and starts at once, for any length.

    Args:
        dataset: a dataset with a length, or the length itself.
        shuffle: whether each epoch has another order; otherwise the keys ascend.
        seed: of the order.
        rank: of this process; None: that of `torch.distributed` or the launcher's environment.
        world_size: number of ranks; None: likewise.
        uneven: what happens at the end if the length is no multiple of the world size: `"pad"` repeats a few samples,
            `"drop"` leaves a few out, `"keep"` delivers each exactly once, and some ranks get one more than others.
        exclude: numbers of samples to leave out; takes 8 bytes for each.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> list(headrace.samplers.DistributedSampler(5, shuffle=False, rank=1, world_size=2, uneven="keep"))
        [1, 3]
    """
