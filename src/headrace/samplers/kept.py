"""The samples that are kept where others are left out, in torch's two orders: as they are, or shuffled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler


class KeptSampler(Sampler[int]):
    """Yields the numbers below `length` but for `excluded`; with `shuffle` in an order that `generator` decides.

    Without a generator the order depends on torch's global one, as in `RandomSampler`. Takes 8 bytes a sample.
    """

    def __init__(
        self, length: int, excluded: npt.NDArray[np.int64], *, shuffle: bool, generator: torch.Generator | None
    ) -> None:
        self.excluded = excluded
        self.indices = np.delete(np.arange(length), excluded)
        self.shuffle = shuffle
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            yield from self.indices.tolist()
            return
        order = torch.randperm(len(self.indices), generator=self.generator).numpy()
        yield from self.indices[order].tolist()

    def __len__(self) -> int:
        return len(self.indices)
