"""The indices of an epoch, in the order in which a sampler gives them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from headrace.batches.index import Positioned
from headrace.batches.whole_batches import makes_batches
from headrace.core.spans import NothingYetError
from headrace.core.torch_internals import StreamSampler
from headrace.core.world import World
from headrace.epoch.look_ahead import HearsBatches
from headrace.epoch.progress import MapProgress
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.key_arrays import key_arrays, key_lists
from headrace.samplers.live import LiveBatches, LiveSampler
from headrace.samplers.sampler import PositionalSampler

SEQUENCES = (list, np.ndarray)
"""What index samplers nearly always give for a batch. The check of an abstract class takes ten times as long."""


def begin_indices(spec: LoaderSpec, begun: Iterator[Any] | None = None) -> Iterator[Any]:
    """Begins an iteration over the index sampler, or goes on with one that torch began.

    In arrays instead for a dataset that fetches whole batches, where that gives the same keys. A sampler of
    headrace's gives arrays much sooner than single keys, so lists are made of those. For a stream, one list is given
    again and again: it says no more than how long a batch is.
    """
    sampler = getattr(spec.index_sampler, "sampler", None)
    if type(sampler) is StreamSampler and type(spec.index_sampler) is BatchSampler:
        # torch puts it together from single `None`s: a third of the time of a streamed batch of 4,096 rows.
        return itertools.repeat([None] * spec.index_sampler.batch_size)

    if isinstance(sampler, LiveSampler):
        return sampler.key_batches(spec.index_sampler.batch_size, drop_last=spec.index_sampler.drop_last)

    known: Iterator[Any] | None = None
    if makes_batches(spec.dataset, spec.collate_fn):
        known = key_arrays(spec.index_sampler)
    elif isinstance(sampler, PositionalSampler):
        known = key_lists(spec.index_sampler)
    if known is not None:
        return known

    if begun is None:
        return iter(spec.index_sampler)
    return begun


class StreamIndices:
    """The indices of an iterable dataset: they only say how many samples a batch has."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def take(self) -> tuple[int, Any]:
        """Returns 0 and the next index. Batches of a stream are counted when they are delivered."""
        return 0, next(self._indices)

    def wait(self, timeout: float | None) -> None:
        """Does nothing: an iterable dataset waits by itself."""

    def size_of(self, number: int) -> int:
        """Returns 0: how many samples a batch of a stream has is seen when it is there."""
        return 0

    def is_at_end(self) -> bool:
        """Returns False: only the stream itself knows its end."""
        return False


class MapIndices:
    """The indices of a map-style dataset, numbered; with `seed=` each sample also has its position in the epoch."""

    def __init__(
        self,
        indices: Iterator[Any],
        progress: MapProgress,
        *,
        batched: bool,
        seeded: bool,
        checkpoint: Callable[[], Any] | None,
        dealing: World,
        offset: int,
    ) -> None:
        """Args:

        indices: what the sampler still gives.
        progress: what was delivered so far; told of each index that is taken.
        checkpoint: notes where the sampler is; None: it has no state.
        dealing: the ranks over which the sampler deals out its positions.
        offset: the position, over all ranks, of the first sample that is still to come.
        """
        self._indices = indices
        self._progress = progress
        self._draws = progress.drawn
        self._beyond = progress.beyond
        self._batched = batched
        self._seeded = seeded
        self._checkpoint = checkpoint
        self._rank = dealing.rank
        self._ranks = dealing.size
        self._offset = offset
        self._deferral = progress.deferral
        self._drawn = progress.batches
        self._samples = 0
        self.listener: HearsBatches | None = None
        """Is told of each batch that leaves; None: nobody reads ahead."""

        self._peeked: tuple[int, Any] | None = None
        self._latest = -1  # the number of the batch that left last

    def take(self) -> tuple[int, Any]:
        """Returns the number of the sampler's next index, and the index as workers want it.

        Raises `StopIteration` at the end, and `NothingYetError` where it is not there yet.
        """
        if self._peeked is not None:
            peeked = self._peeked
            self._peeked = None
            return peeked

        while True:
            index = next(self._indices)
            number = self._drawn
            self._drawn = number + 1
            if self._seeded and self._batched and type(index) in SEQUENCES:  # as nearly always
                count = len(index)
                index = Positioned(index, self._next_positions(count))
            elif self._seeded:
                index = self._positioned(index)
                count = len(index.positions)
            elif self._batched and (type(index) in SEQUENCES or isinstance(index, Sized)):
                count = len(index)
            else:
                count = 1

            if self._deferral is not None and type(index) is Positioned:
                index = self._deferral.take(number, index)

            self._samples += count
            state = None
            if self._checkpoint is not None:
                state = self._checkpoint()

            if not self._beyond:  # as nearly always
                self._draws[number] = count, state
                return number, index
            if self._progress.draw(number, (count, state)):
                return number, index

    @property
    def hears_batches(self) -> bool:
        """Whether somebody is told which batches leave."""
        return self.listener is not None or self._deferral is not None

    @property
    def quickest_take(self) -> Callable[[], tuple[int, Any]]:
        """What does the same as `take`, in the least time."""
        if self._batched and not self._seeded and self._checkpoint is None:
            return self._take_plainly
        return self.take

    def _take_plainly(self) -> tuple[int, Any]:
        """Does what `take` does where neither positions nor a state of the sampler go with an index."""
        if self._peeked is not None or self._beyond:
            return self.take()

        index = next(self._indices)
        count = 1
        if type(index) in SEQUENCES or isinstance(index, Sized):
            count = len(index)

        number = self._drawn
        self._drawn = number + 1
        self._draws[number] = count, None
        return number, index

    def is_at_end(self) -> bool:
        """Tells whether the sampler has nothing left. What it gives instead is kept for `take`."""
        while self._peeked is None:
            try:
                self._peeked = self.take()
            except StopIteration:
                return True
            except NothingYetError:
                pass
            else:
                break

            # Data without an end are never at it.
            if not isinstance(self._indices, LiveBatches) or self._indices.endless:
                break
            self._indices.wait(None)
        return False

    def wait(self, timeout: float | None) -> None:
        """Waits until there may be an index, after `NothingYetError`; at most so many seconds, None: as long as it
        takes."""
        if isinstance(self._indices, LiveBatches):
            self._indices.wait(timeout)

    def size_of(self, number: int) -> int:
        """Returns how many samples a batch has that is on its way to the user.

        If a delivery is interrupted, the same batch leaves again.
        """
        if self.hears_batches and number != self._latest:
            if self._deferral is not None:
                self._deferral.passed(self._latest)
            if self.listener is not None:
                self.listener.passed(number)
            self._latest = number

        draw = self._draws.get(number)
        if draw is None:
            return 0
        return draw[0]

    def _positioned(self, index: Any) -> Positioned:
        if self._batched and not isinstance(index, Sized):
            index = list(index)

        count = 1
        if self._batched:
            count = len(index)

        own = getattr(index, "positions", None)
        if isinstance(own, np.ndarray) and own.shape == (count,):
            return Positioned(index, own)
        return Positioned(index, self._next_positions(count))

    def _next_positions(self, count: int) -> range:
        """Returns the positions of so many samples that come next, of which this rank has each n-th."""
        first = self._offset + self._samples * self._ranks + self._rank
        return range(first, first + count * self._ranks, self._ranks)


Indices = MapIndices | StreamIndices
