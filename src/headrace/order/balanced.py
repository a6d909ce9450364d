"""Every class equally often, however rare it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.counter import stream_key, words_at
from headrace.core.errors import UsageError, explain
from headrace.order.permutation import Permutation
from headrace.order.positions import Uneven
from headrace.order.sampler import Keys, PositionalSampler, positive

WORDS_AT_ONCE = 1 << 20


class ClassBalancedSampler(PositionalSampler):
    """Each run of as many positions as there are classes holds every class once, in random order.

    Within a class the samples are shuffled; when all have come they are shuffled anew, so a sample of a rare class
    comes again only after all others of it. `labels`: one for each sample, a one-dimensional array or sequence of
    anything that can be sorted. `num_samples` per epoch over all ranks; by default one for each label. Memory: 8 bytes
    a label.
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        array = np.asarray(labels)
        if array.ndim != 1 or array.size == 0:
            found = f"an array of shape {array.shape}"
            expected = "one label for each sample, in one dimension"
            raise UsageError(explain("cannot balance these labels", place="labels=", found=found, expected=expected))
        self.classes, numbers = np.unique(array, return_inverse=True)
        self._members = np.argsort(numbers, kind="stable")  # the keys of class 0, then those of class 1, ...
        self._sizes = np.bincount(numbers)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.total = array.size if num_samples is None else positive("num_samples", num_samples)
        self._shuffles: dict[int, tuple[int, Permutation]] = {}

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`."""
        at_once = max(WORDS_AT_ONCE // len(self.classes), 1)
        parts = [self._some_at(epoch, positions[i : i + at_once]) for i in range(0, len(positions), at_once)]
        return np.concatenate(parts) if parts else positions

    def _some_at(self, epoch: int, positions: Keys) -> Keys:
        count = len(self.classes)
        rounds, which = np.unique(positions // count, return_inverse=True)
        words = words_at(stream_key(self.seed, epoch, 0), rounds[:, None] * count + np.arange(count))
        classes = np.argsort(words, axis=1, kind="stable")[which, positions % count]
        # In round r every class comes for the r-th time.
        passes, places = np.divmod(positions // count, self._sizes[classes])
        keys = np.empty_like(positions)
        for number, turn in {*zip(classes.tolist(), passes.tolist(), strict=True)}:
            here = (classes == number) & (passes == turn)
            shuffled = self._shuffle(epoch, number, turn).at(places[here])
            keys[here] = self._members[self._starts[number] + shuffled]
        return keys

    def _shuffle(self, epoch: int, number: int, turn: int) -> Permutation:
        key = stream_key(self.seed, epoch, 1, number, turn)
        kept = self._shuffles.get(number)
        if kept is None or kept[0] != key:
            kept = self._shuffles[number] = key, Permutation(int(self._sizes[number]), key)
        return kept[1]

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "labels": len(self._members), "classes": len(self.classes)}
