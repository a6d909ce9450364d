"""Several datasets mixed by weights that may change on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, Unpack
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.changing_weights import WINDOW, AskedWeights, Unit, WhenExhausted, agreed, checked_rows
from headrace.core.errors import checked_word
from headrace.core.randomness.counter_based import GOLDEN, mix_words, words_at
from headrace.core.splitters import Splitter, splitter
from headrace.core.world import checked_world
from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.mixes import MixPlan
from headrace.samplers.mixture_record import Record, check_rows, damage_in
from headrace.samplers.mixture_refusals import no_end_if_asked, no_end_if_set, planned_ahead, split_elsewhere
from headrace.samplers.permutation import Permutations
from headrace.samplers.positions import local_range
from headrace.samplers.quota import Ints, Quota
from headrace.samplers.sampler import (
    FIRST_CHUNK,
    LARGEST_CHUNK,
    Cursor,
    Dealing,
    ElasticSampler,
    Keys,
    PositionalSampler,
    State,
    digest_of,
    positive,
)
from headrace.samplers.sources import SourceCount, Sources

SOURCES, SAMPLES = 0, 1
"""What is random."""


class MixtureSampler(PositionalSampler, SplitOverRanks):
    """Keys of `torch.utils.data.ConcatDataset(sources)`, drawn from the sources in proportion to `weights`.

    Each source is shuffled, and shuffled again whenever all its samples have come. It continues in the next epoch where
    it stopped, so a large source does not start over in each epoch. After p runs of 256 samples, no source deviates
    from its share by more than 2 + log2(p) * 2/3 samples.

    With `unit="tokens"`, a source's share of the samples is its weight divided by the mean length of its samples. The
    samples come in random order, so its tokens are off by some standard deviations of a length times the square root of
    its samples since its last whole pass. After each whole pass they are exactly the mean length times the samples.

    Weights may change on the way, by a schedule (see `weights`) or by `set_weights`, which then holds for good in the
    place of the schedule. Functions, objects and files are asked at the beginning of each `window`; the state holds
    what they answered, so that a resumed run asks only for the next window. With several ranks, the one that comes to a
    window first asks, and the others get its answer through the store of `torch.distributed`; each window of an epoch
    is asked for once in the life of a process group. Without a group, each rank asks a function itself, and files and
    objects are refused. A file that is missing or broken is an error at the beginning. Later it is warned of, and the
    weights so far go on.

    The order depends on seed, epoch, position, and the weights; `state_dict` holds the last of them. Memory: a few
    words per source and change of the weights. Each rank computes the sources, but not the keys, of all ranks' samples:
    some 15 million samples per second.

    Args:
        sources: datasets, or their lengths; or a mapping of names to them.
        weights: one for each source; a weight of 0 switches the source off. With names: also a mapping of names to
            weights. Or a schedule: a mapping `{0: [1, 1], 100_000: [1, 3]}` of counts to the weights that hold from
            there on; a function of the count that returns weights; an object with such a method `weights_at`; the path
            of a file of JSON with weights. Counts are samples, or tokens by the mean lengths, over all ranks and
            epochs.
        num_samples: samples of an epoch over all ranks; by default the sum of the lengths. With `"stop"` and `"drop"`:
            at most so many.
        unit: whether weights are shares of `"samples"` or of `"tokens"`.
        lengths: for `"tokens"`: for each source an array of the lengths of its samples in tokens, or their mean.
        when_exhausted: what happens when all samples of a source have come in an epoch. `"repeat"`: they come again.
            `"stop"`: the epoch ends. `"drop"`: the other sources go on without it, and the epoch ends when all are
            through. With the last two, all epochs take the sources in the same order, schedules count from the
            beginning of each epoch, and only weights that are known beforehand are taken.
        window: samples over all ranks after which a function, an object or a file is asked again.
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

    _planner: str | None = None
    """The sampler that plans ahead by this one's keys."""

    _asking: Splitter | None = None
    """What splits the keys of the iteration that began last."""

    def __init__(  # noqa: PLR0913 - what is mixed, how, and in which order
        self,
        sources: Sequence[Sized | int] | Mapping[str, Sized | int],
        weights: Any,
        num_samples: int | None = None,
        *,
        unit: Unit = "samples",
        lengths: Any = None,
        when_exhausted: WhenExhausted = "repeat",
        window: int = WINDOW,
        shuffle: bool = True,
        seed: int = 0,
        **dealing: Unpack[Dealing],
    ) -> None:
        super().__init__(seed=seed, **dealing)
        self.sources = Sources(sources, lengths, checked_word("unit", unit, Unit))
        self.lengths = self.sources.samples
        self.shuffle = shuffle
        self.when_exhausted: WhenExhausted = checked_word("when_exhausted", when_exhausted, WhenExhausted)
        self.window = positive("window", window)
        self._digest = digest_of(self.lengths)
        self.source_edges: Keys = np.append(0, np.cumsum(self.lengths))
        """Where the sources begin among the keys, and the last one ends, int64 [sources + 1]."""
        self._shuffles = Permutations(self.lengths)

        rows, self._asked = checked_rows(weights, self.sources.shares)
        self._rows = digest_of(np.concatenate([[since, *shares] for since, shares in rows]))
        if self._asked is not None and self._is_bounded:
            raise no_end_if_asked(self.when_exhausted)
        mixes, end = MixPlan(self._quota, self.lengths, self.sources.costs, self.when_exhausted).of(rows)
        self._planned = mixes
        self._record = Record(mixes)
        total = self.samples_of_dataset
        if num_samples is not None:
            total = positive("num_samples", num_samples)
        if end is not None:
            total = min(total, end)

        self.total = total
        self._per_epoch = mixes.before(total)

    @property
    def _is_bounded(self) -> bool:
        """Whether sources end an epoch, or end in it: then each epoch begins like the first."""
        return self.when_exhausted != "repeat"

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The current weights, with a sum of 1; a new array, shape (sources,). Shares of samples are multiples of
        2**-40."""
        mix = self._record.mixes.holding(self._counted_from(self.epoch) + self._reached()["position"])
        return self.sources.weights(mix.quota.shares)

    def set_weights(self, weights: npt.ArrayLike | torch.Tensor | Mapping[str, float]) -> None:
        """Changes the weights from the next sample on; with a headrace loader, from the loop's next batch on.

        They hold until the next call, in the place of a schedule. All ranks must call it at the same step. The loader
        drops the batches that workers have made ahead, and has them made again.

        Args:
            weights: one for each source.

        Raises:
            UsageError: the weights do not fit the sources; or a framework splits this sampler's keys over the ranks:
                each rank would change at another place; or a source that is exhausted ends an epoch, or ends in it.

        Examples:
            >>> sampler = headrace.samplers.MixtureSampler([4, 4], weights=[1, 3])
            >>> sampler.set_weights([1, 1])
            >>> sampler.weights
            array([0.5, 0.5])
        """
        shares = self.sources.shares(weights)
        if self._planner is not None:
            raise planned_ahead(self._planner)
        if self._is_bounded:
            raise no_end_if_set(self.when_exhausted)
        if self._asking is not None and self._reached()["position"] < self.total:
            raise split_elsewhere(self._asking.framework)

        self._record = self._changed(self._record, shares, self.epoch, self._reached()["position"])
        self.changes += 1

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have: the sum over all sources."""
        return int(self.source_edges[-1])

    def stats(self) -> dict[str | int, SourceCount]:
        """Tells what has come of each source, over all ranks and epochs, up to where the iteration is.

        A loader with workers draws ahead of its loop: then the batches are counted that are still to come, too.

        Returns:
            A count for each source, by its name, or by its number where sources have no names.

        Examples:
            >>> sampler = headrace.samplers.MixtureSampler({"web": 4, "code": 4}, weights=[1, 3], num_samples=8)
            >>> keys = list(sampler)
            >>> sampler.stats()["code"].samples
            6
        """
        return self.sources.counted(self._before(self.epoch, self._reached()["position"]))

    def forecast(self, epochs: int = 1) -> dict[str | int, SourceCount]:
        """Tells what comes of each source in some epochs, the current one first, with the weights known now.

        Args:
            epochs: how many, whole ones.

        Returns:
            A count for each source, as in `stats`.

        Raises:
            UsageError: `epochs` is no whole number above 0.

        Examples:
            >>> sampler = headrace.samplers.MixtureSampler({"web": 8, "code": 4}, weights=[1, 3], num_samples=8)
            >>> sampler.forecast()["code"].repeats
            1.5
        """
        end = self._before(self.epoch + positive("epochs", epochs), 0)
        return self.sources.counted(np.maximum(end - self._before(self.epoch, 0), 0))

    def begin_window(self, epoch: int, start: int) -> None:
        """Asks for the weights that hold from a position on, where they are asked for.

        For samplers that plan ahead by `keys_at`, window by window: call it before each, on all ranks. From then on,
        `keys_at` tells the keys of the window, and state_dict() those weights, also when a resumed run begins the
        window once more. A window that was begun is not asked for again.

        Args:
            epoch: counted from 0.
            start: the first position of the window, in the epoch.

        Raises:
            UsageError: there are several ranks, the weights may differ between them, and there is no process group.

        Examples:
            >>> sampler = headrace.samplers.MixtureSampler([4, 4], weights=lambda position: [1, position])
            >>> sampler.begin_window(epoch=0, start=4)
            >>> sampler.keys_at(0, np.arange(4, 8)).shape
            (4,)
        """
        here = epoch * self.total + start
        if not self._is_bounded and here != self._record.window:
            self._begin_window(epoch, here, here)

    def is_planned_for(self, planner: ElasticSampler) -> None:
        """Has a sampler plan ahead by the keys of this one. What ranks must agree on is that one's ranks' affair."""
        self._planner = planner.name
        self._rank, self._world_size = planner._rank, planner._world_size

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`; with the weights that are known now.

        They are known from the beginning of the current window on; without a schedule, from their last change on.
        """
        sources, counts = self._record.mixes.at(positions + self._counted_from(epoch))
        if self._is_bounded:
            counts = counts + epoch * self._per_epoch[sources]
        passes, places = np.divmod(counts, self.lengths[sources])
        if self.shuffle:
            words = words_at(self._stream(SAMPLES, 0), sources) + passes.astype(np.uint64) * np.uint64(GOLDEN)
            places = self._shuffles.at(sources, mix_words(words), places)

        keys: Keys = self.source_edges[sources] + places
        return keys

    def _counted_from(self, epoch: int) -> int:
        """Returns the position of the mixes at which an epoch begins."""
        return 0 if self._is_bounded else epoch * self.total

    def _before(self, epoch: int, position: int) -> Ints:
        """Returns how often each source came before a position, over all epochs."""
        counts = self._record.mixes.before(self._counted_from(epoch) + position)
        if self._is_bounded:
            counts = counts + epoch * self._per_epoch
        return counts

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
            chunk = mine[count[0] : count[0] + size]
            if self._asked is not None:
                first = start + count[0] * world.size
                behind = self._begin_windows(epoch, start, first, first + world.size)
                chunk = chunk[: max((behind - first) // world.size, 1)]

            mixes = self._record.mixes
            for key in self.keys_at(epoch, self._wrapped(chunk)).tolist():
                count[0] += 1
                yield key
                # The weights were changed while the loop had this key: the rest of the chunk is of the old ones.
                if self._record.mixes is not mixes:
                    break

            size = min(2 * size, largest)

        if self._asked is not None:
            # With "keep" this rank may be one short of the others. States are the same on all.
            self._begin_windows(epoch, start, start + len(mine) * world.size, self.total)
        count[0] = self.total

    def _begin(self) -> State:
        self._asking = splitter()
        if self._start is None:
            self._ask_anew()
        return super()._begin()

    def set_epoch(self, epoch: int) -> None:
        """See `ElasticSampler.set_epoch`."""
        super().set_epoch(epoch)
        self._ask_anew()

    def upcoming(self) -> Any:
        epoch, position, record, changes = super().upcoming()
        if self._start is None:
            record = record._replace(window=None)
        return epoch, position, record, changes

    def _ask_anew(self) -> None:
        """Has a pass from the beginning of an epoch ask for weights, also where it is the same epoch once more."""
        self._record = self._record._replace(window=None)

    # -- changes of the weights ----------------------------------------------------------------------------------------

    def _begin_windows(self, epoch: int, start: int, first: int, stop: int) -> int:
        """Begins the windows in which the positions of a step lie; returns where the one behind them begins.

        start: where the iteration began. first, stop: of the step, over all ranks: so each rank does this with the same
        step, also where only another rank's sample is in the window.
        """
        window = first - first % self.window
        while window < min(stop, self.total):
            begun = self._record.window
            here = epoch * self.total + window
            if begun is None or here > begun:
                self._begin_window(epoch, epoch * self.total + max(window, start), epoch * self.total + first)
            window += self.window

        return window

    def _begin_window(self, epoch: int, here: int, first: int) -> None:
        """Begins a window. here: where, over all epochs. first: from where on keys are still wanted."""
        record = self._record
        if self._asked is not None and not record.replaced:
            shares = np.array(self._agreed(self._asked, here), np.int64)
            record = record.asked(self._quota(shares), here)
        if record.replaced or not self._is_scheduled:
            record = record.kept(epoch * self.total, first)
        self._record = record._replace(window=here)

    @property
    def _is_scheduled(self) -> bool:
        """Whether all weights are known beforehand, and change on the way."""
        return len(self._planned.row) > 1

    def _agreed(self, asked: AskedWeights, here: int) -> list[int]:
        """Returns the shares from a position on, the same on all ranks."""

        def ask() -> list[int]:
            counts = self._record.mixes.before(here)
            known = asked.at(round(float(counts @ self.sources.costs)), self.sources.shares)
            if known is None:
                known = self._record.mixes.holding(here).quota.shares
            return known.tolist()  # type: ignore[no-any-return]

        # Where the sampler has all keys of a group for itself, no rank needs the same weights.
        if checked_world(self._rank, self._world_size).size == 1:
            return ask()
        name = f"{self.name} {self._identity()} {here}"
        return agreed(asked, f"{asked.place} {crc32(name.encode()):x}", ask)  # type: ignore[no-any-return]

    def _changed(self, record: Record, shares: Ints, epoch: int, position: int) -> Record:
        """Returns a record in which these shares hold from a position of an epoch on."""
        begin = epoch * self.total
        return record.changed(self._quota(shares), begin, begin + position)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Tells where the iteration is, as `ElasticSampler.state_dict` does.

        `shares` are the shares of samples, in units of 2**-40, `since` is the position from which they apply, counted
        over all epochs, and `counts` says how many samples each source had delivered before that position. Where
        weights are asked for, `window` says where the current window began, and `earlier` what held before. `replaced`
        says that `set_weights` was called. Of weights that are known beforehand, `rows` is a digest of those that begin
        before the position `until`: they cannot be others after a resume.

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
        return *super()._noted(epoch, cursor), self._record, self.changes

    def state_at(self, checkpoint: Any) -> State:
        if isinstance(checkpoint, dict):
            return checkpoint

        epoch, position, _, _ = checkpoint
        record = self._record_at(checkpoint)
        if self._is_bounded:
            more = record.to_state_in_epoch(position, epoch * self._per_epoch)
        else:
            here = epoch * self.total + position
            more = record.to_state(epoch * self.total, here)
            if self._asked is None:
                more.update(self._planned.told_before(here + 1))
        if record.replaced and (self._asked is not None or self._is_scheduled):
            more["replaced"] = True
        return {"sampler": self.name, **self._identity(), "epoch": epoch, "position": position, **more}

    def state_before(self, epoch: int, position: int, planned: int = 0) -> State:
        state = super().state_before(epoch, position)
        if "until" in state:
            state.update(self._planned.told_before(max(epoch * self.total + planned, state["until"])))
        return state

    def begin_change(self, checkpoint: Any) -> None:
        self._record = self._record_at(checkpoint)

    def _record_at(self, checkpoint: Any) -> Record:
        epoch, position, record, changes = checkpoint
        if changes == self.changes:
            return record  # type: ignore[no-any-return]
        return self._changed(record, self._record.mixes.last.quota.shares, epoch, position)

    def load_state_dict(self, state_dict: State) -> None:
        super().load_state_dict(state_dict)
        if self._is_bounded:
            return

        record = Record.of_state(state_dict, self._quota)
        if self._is_scheduled and not record.replaced:
            here = state_dict["epoch"] * self.total + state_dict["position"]
            record = record.within(self._planned, here)
        self._record = record

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        if found := damage_in(state, len(self.lengths)):
            self._refuse("this state is damaged", found, "what state_dict() returned")
        if self._asked is None and not self._is_bounded:
            check_rows(state, self._planned, self.sources.unit, is_planned=self._planner is not None)

    def _quota(self, shares: Ints) -> Quota:
        return Quota(shares, self._stream(SOURCES, 0))

    def order_key(self) -> State:
        # The first answer that was asked for may be another one in each process; further ones the ranks agree on.
        if self._asked is not None:
            return super().order_key()
        return {**super().order_key(), "weights": self._rows}

    def _identity(self) -> dict[str, Any]:
        more: dict[str, Any] = {"sources": len(self.lengths), "digest": self._digest, "shuffle": self.shuffle}
        if self._is_bounded:
            more["when_exhausted"] = self.when_exhausted
            more["weights"] = self._rows
        return {**super()._identity(), **more}
