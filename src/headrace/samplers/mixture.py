"""Several datasets mixed by weights that may change on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import GOLDEN, mix_words, words_at
from headrace.samplers.frameworks import SplitOverRanks, Splitter, splitter
from headrace.samplers.permutation import Permutations
from headrace.samplers.positions import local_range
from headrace.samplers.quota import ONE, Ints, Quota, shares_of
from headrace.samplers.sampler import (
    FIRST_CHUNK,
    LARGEST_CHUNK,
    Cursor,
    Dealing,
    Keys,
    PositionalSampler,
    State,
    digest_of,
    length_of,
    positive,
)
from headrace.samplers.weighted import checked_weights

SOURCES, SAMPLES = 0, 1
"""What is random."""


class Mix(NamedTuple):
    """The weights from one position on, counted over all epochs; and how often each source came before it."""

    quota: Quota
    since: int
    counts: Ints
    ahead: Ints
    """How much more often each source came before `since` than it would have with these weights."""

    @classmethod
    def of(cls, quota: Quota, since: int, counts: Ints) -> Mix:
        """Returns the mix of these weights."""
        return cls(quota, since, counts, counts - quota.before(since))

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Returns for each position the source, and how often it came before."""
        sources, counts = self.quota.at(positions)
        return sources, counts + self.ahead[sources]

    def before(self, position: int) -> Ints:
        """Returns how often each source came before `position`."""
        return self.quota.before(position) + self.ahead


class MixtureSampler(PositionalSampler, SplitOverRanks):
    """Keys of `torch.utils.data.ConcatDataset(sources)`, drawn from the sources in proportion to `weights`.

    Each source is shuffled, and shuffled again whenever all its samples have come. It continues in the next epoch where
    it stopped, so a large source does not start over in each epoch. After p runs of 256 samples, no source deviates
    from its share by more than 2 + log2(p) * 2/3 samples.

    `set_weights` applies from the next sample on, also within an epoch. All ranks must call it at the same step. The
    order depends on seed, epoch, position, and when the weights changed; `state_dict` holds their last change. Memory:
    a few words per source. Each rank computes the sources, but not the keys, of all ranks' samples: some 15 million
    samples per second.

    Args:
        sources: datasets, or their lengths.
        weights: one for each source; a weight of 0 switches the source off.
        num_samples: samples of an epoch over all ranks; by default the sum of the lengths.
        shuffle: whether the samples of each source are shuffled.
        seed: of the order.
        dealing: `rank`, `world_size` and `uneven`, as in `DistributedSampler`.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> sampler = headrace.samplers.MixtureSampler([4, 4], weights=[1, 3], num_samples=8)
        >>> sum(key >= 4 for key in sampler)
        6
    """

    may_change = True

    _asking: Splitter | None = None
    """What splits the keys of the iteration that began last."""

    def __init__(
        self,
        sources: Sequence[Sized | int],
        weights: npt.ArrayLike | torch.Tensor,
        num_samples: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        **dealing: Unpack[Dealing],
    ) -> None:
        super().__init__(seed=seed, **dealing)
        self.lengths = np.array([length_of(source) for source in sources], np.int64)
        self.shuffle = shuffle
        self._digest = digest_of(self.lengths)
        ends = np.cumsum(self.lengths)
        self._offsets = ends - self.lengths
        self._shuffles = Permutations(self.lengths)
        self._mix = Mix.of(self._quota(self._checked(weights)), 0, np.zeros_like(self.lengths))
        if num_samples is None:
            self.total = int(ends[-1])
        else:
            self.total = positive("num_samples", num_samples)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The current weights, in multiples of 2**-40, with a sum of 1; a new array, shape (sources,)."""
        return self._mix.quota.shares / ONE

    def set_weights(self, weights: npt.ArrayLike | torch.Tensor) -> None:
        """Changes the weights from the next sample on; with a headrace loader, from the loop's next batch on.

        The loader drops the batches that workers have made ahead, and has them made again.

        Args:
            weights: one for each source.

        Raises:
            UsageError: the weights do not fit the sources, or a framework splits this sampler's keys over the ranks:
                each rank would change at another place.

        Examples:
            >>> sampler = headrace.samplers.MixtureSampler([4, 4], weights=[1, 3])
            >>> sampler.set_weights([1, 1])
            >>> sampler.weights
            array([0.5, 0.5])
        """
        shares = self._checked(weights)
        if self._asking is not None and self._reached()["position"] < self.total:
            raise UsageError.about(
                "the ranks would change their weights at different places",
                place="MixtureSampler.set_weights",
                found=f"an epoch whose samples {self._asking.framework} splits over the ranks",
                expected="a call between two epochs, or ranks that the sampler splits the samples over itself",
                fix=f"keep the loader from {self._asking.framework}, or change the weights when the epoch is over",
            )

        self._mix = self._changed(self._mix, shares, self.epoch * self.total + self._reached()["position"])
        self.changes += 1

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have: the sum over all sources."""
        return int(self.lengths.sum())

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`; with the weights that hold now."""
        sources, counts = self._mix.at(positions + epoch * self.total)
        passes, places = np.divmod(counts, self.lengths[sources])
        if self.shuffle:
            words = words_at(self._stream(SAMPLES, 0), sources) + passes.astype(np.uint64) * np.uint64(GOLDEN)
            places = self._shuffles.at(sources, mix_words(words), places)

        keys: Keys = self._offsets[sources] + places
        return keys

    def __iter__(self) -> Iterator[int]:
        start = self._begin()["position"]
        epoch = self.epoch
        world = self.world
        mine = local_range(start, self.total, world, self.uneven)
        count = [0]
        # Keys are made in chunks that grow, so that a start or a resume is quick and later ones are made at full speed.
        # The cursor counts keys as they are given out, so that a state never tells of keys that were only made.
        self._cursor = (start, world.size, count)
        size = FIRST_CHUNK
        largest = max(LARGEST_CHUNK // world.size, FIRST_CHUNK)
        while count[0] < len(mine):
            mix = self._mix
            for key in self.keys_at(epoch, self._wrapped(mine[count[0] : count[0] + size])).tolist():
                count[0] += 1
                yield key
                # The weights were changed while the loop had this key: the rest of the chunk is of the old ones.
                if self._mix is not mix:
                    break

            size = min(2 * size, largest)

        count[0] = self.total

    def _begin(self) -> State:
        self._asking = splitter()
        return super()._begin()

    def _changed(self, mix: Mix, shares: Ints, here: int) -> Mix:
        return Mix.of(self._quota(shares), here, mix.before(here))

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Tells where the iteration is, as `ElasticSampler.state_dict` does.

        `shares` are the weights, in units of 2**-40, `since` is the position from which they apply, counted over all
        epochs, and `counts` says how many samples each source had delivered before that position.

        Returns:
            Plain values, the same on all ranks that are in step.

        Examples:
            >>> sampler = headrace.samplers.MixtureSampler([4, 4], weights=[1, 3])
            >>> sampler.state_dict()["counts"]
            [0, 0]
        """
        return self.state_at(self.checkpoint())

    def checkpoint(self) -> Any:
        return self._noted(self.epoch, self._cursor)

    def follow(self) -> Callable[[], Any]:
        return functools.partial(self._noted, self.epoch, self._cursor)

    def _noted(self, epoch: int, cursor: Cursor) -> Any:
        return *super()._noted(epoch, cursor), self._mix, self.changes

    def state_at(self, checkpoint: Any) -> State:
        if isinstance(checkpoint, dict):
            return checkpoint

        epoch, position, _, _ = checkpoint
        mix = self._mix_at(checkpoint)
        more = {"since": mix.since, "shares": mix.quota.shares.tolist(), "counts": mix.counts.tolist()}
        return {"sampler": self.name, **self._identity(), "epoch": epoch, "position": position, **more}

    def begin_change(self, checkpoint: Any) -> None:
        self._mix = self._mix_at(checkpoint)

    def _mix_at(self, checkpoint: Any) -> Mix:
        epoch, position, mix, changes = checkpoint
        if changes == self.changes:
            return mix  # type: ignore[no-any-return]
        return self._changed(mix, self._mix.quota.shares, epoch * self.total + position)

    def load_state_dict(self, state_dict: State) -> None:
        super().load_state_dict(state_dict)
        shares = np.array(state_dict["shares"], np.int64)
        counts = np.array(state_dict["counts"], np.int64)
        self._mix = Mix.of(self._quota(shares), state_dict["since"], counts)

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        since = state.get("since")
        shares = state.get("shares")
        counts = state.get("counts")
        is_sound = isinstance(since, int) and since >= 0 and self._is_row(shares) and self._is_row(counts)
        if not is_sound or min(shares) < 0 or sum(shares) != ONE:
            found = f"since={since!r}, shares={shares!r}, counts={counts!r}"
            self._refuse("this state is damaged", found, "what state_dict() returned")

    def _is_row(self, row: object) -> bool:
        """Tells whether something has an entry for each source, as rows of a state do."""
        return isinstance(row, list) and len(row) == len(self.lengths)

    def _quota(self, shares: Ints) -> Quota:
        return Quota(shares, self._stream(SOURCES, 0))

    def _checked(self, weights: npt.ArrayLike | torch.Tensor) -> Ints:
        shares = shares_of(checked_weights(weights))
        if len(shares) != len(self.lengths):
            self._refuse_weights(f"{len(shares)} weights")

        empty = np.flatnonzero((self.lengths == 0) & (shares > 0))
        if empty.size:
            self._refuse_weights(f"a weight for the empty source {empty[0]}")
        return shares

    def _refuse_weights(self, found: str) -> None:
        expected = f"one for each of the {len(self.lengths)} sources, and 0 for empty ones"
        fix = "give as many weights as sources, in the same order"
        raise UsageError.about("these weights do not fit", place="weights=", found=found, expected=expected, fix=fix)

    def _identity(self) -> dict[str, Any]:
        more = {"sources": len(self.lengths), "digest": self._digest, "shuffle": self.shuffle}
        return {**super()._identity(), **more}
