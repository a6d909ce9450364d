"""A shuffle for sequential storage: blocks in random order, samples shuffled within a window of blocks."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np

from headrace.core.randomness.counter_based import words_at
from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.permutation import Permutation, Permutations
from headrace.samplers.positions import Uneven
from headrace.samplers.sampler import Keys, PositionalSampler, length_of, positive

BLOCKS, SAMPLES = 0, 1
"""What is shuffled."""


class BlockShuffleSampler(PositionalSampler, SplitOverRanks):
    """Every key once, with only `window` blocks of `block_size` neighbouring keys in use at a time.

    The blocks (of a file, a row group, a chunk) come in random order. The samples of `window` consecutive blocks are
    shuffled together: a larger window mixes better and keeps more blocks open. Memory is constant.

    Args:
        dataset: a dataset with a length, or the length itself.
        block_size: samples of a block.
        window: blocks that are shuffled together.
        seed: of the order.
        rank: of this process; None: that of `torch.distributed` or the launcher's environment.
        world_size: number of ranks; None: likewise.
        uneven: as in `DistributedSampler`.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> sampler = headrace.samplers.BlockShuffleSampler(6, block_size=2, window=1)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4, 5]
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

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have."""
        return self.total

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`.

        The last block may be short. Were it full, window w would hold the places w*span .. (w+1)*span-1; instead, all
        that comes behind the end of the short block comes `missing` positions earlier.
        """
        size = self.block_size
        span = self.block_size * self.window
        blocks = -(-self.total // size)
        missing = blocks * size - self.total
        # When the short block comes, and in which window; behind all others if every block is full.
        order = Permutation(blocks, self._stream(BLOCKS, epoch))
        turn = blocks
        if missing:
            turn = int(order.inverse(np.array([blocks - 1]))[0])

        number = turn // self.window
        places = positions + missing * (positions >= (number + 1) * span - missing)

        # Windows have four lengths: a full one, the last one, the one with the short block, and the last one with it.
        windows = places // span
        last = -(-blocks // self.window) - 1
        last_span = blocks * size - last * span
        lengths = np.maximum([span, last_span, span - missing, last_span - missing], 0)
        rows = (windows == last) + 2 * (windows == number)
        keys_of_windows = words_at(self._stream(SAMPLES, epoch), windows)
        offsets = Permutations(lengths).at(rows, keys_of_windows, places - windows * span)

        places = windows * span + offsets
        places += missing * ((windows == number) & (places >= (turn + 1) * size - missing))
        keys: Keys = order.at(places // size) * size + places % size
        return keys

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "block_size": self.block_size, "window": self.window}
