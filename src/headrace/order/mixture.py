"""Several data sets mixed by weights that may change on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.counter import stream_key
from headrace.core.errors import UsageError, explain
from headrace.order.permutation import Permutation
from headrace.order.positions import Uneven, local_range, stop_of
from headrace.order.sampler import FIRST_CHUNK, LARGEST_CHUNK, ElasticSampler, Keys, length_of, positive
from headrace.order.weighted import checked_weights

BLOCK = 1024
"""In each run of so many positions every source has its share, give or take one sample."""


class MixtureSampler(ElasticSampler):
    """Keys of `torch.utils.data.ConcatDataset(sources)`, taken from the sources in proportion to `weights`.

    `sources` are data sets, or their lengths. Each is shuffled, and shuffled anew whenever it is used up; where one
    stopped it goes on in the next epoch, so a large source is not begun again and again. The order therefore depends on
    what came before: on the counts and the weights, which the state holds.

    `set_weights` holds from the next sample drawn on, also in mid-epoch; batches that are prefetched were drawn
    before. All ranks must call it at the same step. `num_samples` per epoch over all ranks; by default the sum of the
    lengths. Memory: constant.
    """

    def __init__(
        self,
        sources: Sequence[Sized | int],
        weights: npt.ArrayLike,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        self.lengths = [length_of(source) for source in sources]
        self._offsets = np.cumsum([0, *self.lengths])
        self._counts = np.zeros(len(self.lengths), np.int64)
        self._ahead: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # the sources of what is being yielded
        self._changes = 0
        self.set_weights(weights)
        self.total = int(self._offsets[-1]) if num_samples is None else positive("num_samples", num_samples)

    def set_weights(self, weights: npt.ArrayLike) -> None:
        """Changes the weights from the next sample on. Raises `UsageError` if they do not fit the sources."""
        array = checked_weights(weights)
        empty = [
            number for number, length in enumerate(self.lengths) if length == 0 and array[number : number + 1].any()
        ]
        if len(array) != len(self.lengths) or empty:
            found = f"a weight for the empty source {empty[0]}" if empty else f"{len(array)} weights"
            expected = f"one for each of the {len(self.lengths)} sources, and 0 for empty ones"
            raise UsageError(explain("these weights do not fit", place="weights=", found=found, expected=expected))
        self.weights = array / array.sum()
        self._changes += 1

    def state_dict(self) -> dict[str, Any]:
        """See `ElasticSampler.state_dict`; holds the weights, and how many samples each source has given."""
        yielded = self._now.get("used", 0)
        counts = self._counts + np.bincount(self._ahead[:yielded], minlength=len(self.lengths))
        now = {"position": self._now.get("position", 0), "counts": counts.tolist(), "weights": self.weights.tolist()}
        return {"sampler": type(self).__name__, **self._identity(), "epoch": self.epoch, **now}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `ElasticSampler.load_state_dict`."""
        super().load_state_dict(state_dict)
        self._settle()
        self._counts = np.asarray(state_dict["counts"], np.int64)
        self.set_weights(state_dict["weights"])

    def set_epoch(self, epoch: int) -> None:
        """See `ElasticSampler.set_epoch`."""
        self._settle()
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        self._settle()
        start, epoch, world = self._begin()["position"], self.epoch, self.world
        mine = local_range(start, self.total, world, self.uneven)
        self._now = now = {"position": start, "used": 0}
        done, size = 0, FIRST_CHUNK
        while done < len(mine):
            first = start + done * world.size
            stop = min(first + size * world.size, stop_of(start, self.total, world.size, self.uneven))
            keys = self._mix(epoch, np.arange(first, stop, dtype=np.int64))
            changes, used = self._changes, 0
            for key in keys[world.rank :: world.size].tolist():
                done, used = done + 1, min(used + world.size, len(keys))
                now.update(position=min(start + done * world.size, self.total), used=used)
                yield key
                if self._now is not now:
                    raise UsageError("another iteration of this MixtureSampler has begun; this one cannot go on")
                if self._changes != changes:
                    break
            self._settle()
            now["used"], size = 0, min(2 * size, LARGEST_CHUNK)

    def _settle(self) -> None:
        """Adds what was yielded of the keys at hand to the counts, and forgets the others."""
        yielded = self._now.get("used", 0)
        self._counts = self._counts + np.bincount(self._ahead[:yielded], minlength=len(self.lengths))
        self._ahead = self._ahead[:0]
        if "used" in self._now:
            self._now["used"] = 0

    def _mix(self, epoch: int, positions: Keys) -> Keys:
        """Returns the keys at `positions`, which follow each other and on what was counted so far."""
        edges = np.cumsum(self.weights)
        sources = np.empty_like(positions)
        for block in range(int(positions[0]) // BLOCK, int(positions[-1]) // BLOCK + 1):
            here = positions // BLOCK == block
            strata = Permutation(BLOCK, stream_key(self.seed, epoch, block)).at(positions[here] % BLOCK)
            sources[here] = np.searchsorted(edges, (strata + 0.5) / BLOCK * edges[-1], side="right")
        keys = np.empty_like(positions)
        for number in np.unique(sources).tolist():
            here = sources == number
            counts = self._counts[number] + np.arange(int(here.sum()), dtype=np.int64)
            keys[here] = self._offsets[number] + self._keys_of(number, counts)
        self._ahead = sources
        return keys

    def _keys_of(self, number: int, counts: Keys) -> Keys:
        """Returns the keys within a source that come for the `counts`-th time, counted over all epochs."""
        length = self.lengths[number]
        keys = np.empty_like(counts)
        for turn in np.unique(counts // length).tolist():
            here = counts // length == turn
            keys[here] = Permutation(length, stream_key(self.seed, -1 - number, turn)).at(counts[here] % length)
        return keys

    def __len__(self) -> int:
        return len(local_range(0, self.total, self.world, self.uneven))

    def _identity(self) -> dict[str, Any]:
        return {"total": self.total, "seed": self.seed, "sources": self.lengths}
