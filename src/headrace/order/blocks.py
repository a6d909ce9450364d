"""A shuffle for sequential storage: blocks in random order, samples shuffled within a window of blocks."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np

from headrace.core.counter import stream_key
from headrace.order.permutation import Permutation
from headrace.order.positions import Uneven
from headrace.order.sampler import Keys, PositionalSampler, length_of, positive


class BlockShuffleSampler(PositionalSampler):
    """Every key once, so that only `window` blocks of `block_size` neighbouring keys are in use at a time.

    Blocks (of a file, a row group, a chunk) come in random order; the samples of `window` consecutive ones are shuffled
    together. A larger window mixes better and keeps more blocks open. Constant memory; `dataset` and `uneven` as in
    `DistributedSampler`.
    """

    def __init__(
        self,
        dataset: Sized | int,
        block_size: int,
        *,
        window: int = 16,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        self.total = length_of(dataset)
        self.block_size = positive("block_size", block_size)
        self.window = positive("window", window)

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`."""
        size, span = self.block_size, self.block_size * self.window
        blocks = -(-self.total // size)
        missing = blocks * size - self.total  # samples that the last block lacks
        order = Permutation(blocks, stream_key(self.seed, epoch, -1))
        short = int(order.inverse(np.asarray([blocks - 1]))[0])  # when the last block comes
        # Behind the window with the short block everything comes `missing` positions earlier than if all were full.
        behind = positions >= (short // self.window + 1) * span - missing
        places = positions + behind * missing
        keys = np.empty_like(positions)
        for number in np.unique(places // span).tolist():
            here = places // span == number
            full = min(self.window, blocks - number * self.window) * size
            lacks = missing if short // self.window == number else 0
            shuffle = Permutation(full - lacks, stream_key(self.seed, epoch, number))
            offsets = shuffle.at(places[here] - number * span)
            after_short = offsets >= (short % self.window + 1) * size - missing if lacks else False
            offsets = offsets + after_short * missing
            keys[here] = order.at(number * self.window + offsets // size) * size + offsets % size
        return keys

    def _identity(self) -> dict[str, object]:
        return {**super()._identity(), "block_size": self.block_size, "window": self.window}
