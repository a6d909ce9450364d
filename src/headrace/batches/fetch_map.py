"""Fetches batches from a dataset, in any process, and names the key of a sample that fails.

Both fetchers follow torch's: the same calls on the dataset in the same order. `fetch` raises `StopIteration` at the
end of an iterable dataset; an exception from the dataset is raised as it is, with a note that names the sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from headrace.batches.collate_packed import takes_packs
from headrace.batches.index import Careful, Positioned, Positions, split
from headrace.batches.notes import describe, note, note_sample
from headrace.batches.partial_loading import PartialLoading
from headrace.batches.whole_batches import draws_numbers, whole_batches
from headrace.core.missing_state import MissingState, state_of
from headrace.core.process.activity import (
    JUDGE,
    LOAD,
    PLACE,
    SPARE,
    STAGE,
    TOGETHER,
    Activity,
    note_collation,
    private_activity,
)
from headrace.core.process.signal_handlers import is_of_signal_handler
from headrace.core.protocols import is_stateful
from headrace.core.randomness.rng import BATCH, SAMPLE, SampleStreams
from headrace.core.randomness.unseeded import Unseeded
from headrace.faults.bad_sample import BadSample
from headrace.samplers.packed_batch import PackedBatch

NOT_PACKED = (
    "the batches of a PackedBatchSampler are packs of documents of different lengths: packs are made by "
    "DataLoader(..., collate_fn=headrace.collate_packed)"
)


class BatchFetcher(Protocol):
    """Makes one batch after the other."""

    def fetch(self, index: object) -> Any:
        """Returns the batch for what the index sampler gave: a key, a list of keys, or either as `Positioned`."""

    def state(self) -> Any:
        """Returns what is needed to go on after the last batch in another process; None if that is nothing.

        Never raises because of the dataset: see `MissingState`.
        """

    def give_up_state(self, missing: MissingState) -> None:
        """Has `missing` be the state from now on: what the dataset returns is of no use."""

    def losses(self) -> Sequence[BadSample]:
        """Returns what became of the bad samples of the last batch."""


class MapFetcher:
    """Fetches from a dataset with `__getitem__` or `__getitems__`."""

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        collate: Callable[..., Any],
        streams: SampleStreams | None = None,
        activity: Activity | None = None,
        *,
        watched: bool = False,
        unseeded: Unseeded | None = None,
    ) -> None:
        self.dataset = dataset
        self._partial: PartialLoading | None = None
        self._batched = batched
        self._collate = collate
        self.takes_packs = takes_packs(collate)
        """Whether the collate function is told which packs a batch has."""
        self._streams = streams
        if activity is None:
            self._activity = private_activity()
        else:
            self._activity = activity

        self._watched = watched
        self._stateful = is_stateful(dataset)
        self._missing: MissingState | None = None
        if batched:
            self._whole = whole_batches(dataset, collate)
        else:
            self._whole = None

        self._together = batched and bool(getattr(dataset, "__getitems__", None))
        self._draws = streams is not None and draws_numbers(dataset)
        self._unseeded: Unseeded | None = None
        if unseeded is not None:
            self.try_unseeded(unseeded)

    def share(self, partial: PartialLoading) -> None:
        """Has samples be looked at one by one, and a batch end where others make the rest."""
        self._partial = partial

    def try_unseeded(self, unseeded: Unseeded) -> None:
        """Makes batches without seeds first, where that is possible."""
        # A batch that turns out to need seeds is made twice. A dataset with a state would count it twice, too.
        if self._streams is None or self._stateful or self._whole is not None:
            return
        self._unseeded = unseeded

    @property
    def tries_unseeded(self) -> bool:
        """Whether batches are made without seeds first, so that nobody has to look after the global generators."""
        return self._unseeded is not None and self._unseeded.first

    @property
    def has_state(self) -> bool:
        """Whether the dataset has a state."""
        return self._stateful

    def seeding(self) -> contextlib.AbstractContextManager[None]:
        """Returns what is around the making of single samples, which seeds."""
        if self._unseeded is None:
            return contextlib.nullcontext()
        return self._unseeded.seeding()

    @property
    def makes_whole_batches(self) -> bool:
        """Whether the dataset makes batches, so that there are no samples to collate."""
        return self._whole is not None

    @property
    def loads_together(self) -> bool:
        """Whether samples of a batch are loaded all at once: which of them fails is not known."""
        return self._whole is not None or self._together

    def fetch(self, index: object, samples: list[Any] | None = None) -> Any:
        """See `BatchFetcher.fetch`. Samples that are loaded one by one go into `samples`, also if one raises."""
        # This batch killed a worker while all its samples were made at once, so that nobody knows which one did it. Now
        # each is made alone, with its place in the activity: if the worker dies again, that place is read there.
        if type(index) is Careful:
            index = index.index
            self._try_each(*split(index, batched=self._batched))

        positions: Positions = ()
        if type(index) is Positioned:
            index, positions = index
        if self._whole is not None:
            return self.load_whole(index, positions)
        if samples is None:
            samples = []
        if self._unseeded is not None and self._unseeded.first and len(positions):
            return self._unseeded_first(self._unseeded, index, positions, samples)
        return self._make(index, positions, samples)

    def plain_fetch(self) -> Callable[[Any], Any]:
        """Returns what makes batches as `fetch` does, where nobody looks at the activity and no batch kills a worker.

        Whole batches that draw no numbers are then made by the dataset's own method, with nothing in between.
        """
        whole = self._whole
        if whole is None or self._draws:
            return self.fetch

        def fetch(index: Any) -> Any:
            if type(index) is Positioned:
                index = index.index
            try:
                return whole(index)
            except Exception as error:
                note(error, f"raised while loading {describe(index)}")
                raise

        return fetch

    def _unseeded_first(self, unseeded: Unseeded, index: Any, positions: Positions, samples: list[Any]) -> Any:
        """Returns a batch that is made without seeds, and again with them if anybody has drawn random numbers."""
        while unseeded.begin():
            try:
                batch = self._make(index, (), samples)
            except BaseException as error:
                # An exception may come of a random number: with seeds, the same one must come in every run. That of a
                # signal handler has nothing to do with the batch.
                verdict = unseeded.end()
                if verdict == "good" or not isinstance(error, Exception) or is_of_signal_handler(error):
                    raise
            else:
                verdict = unseeded.end()
                if verdict == "good":
                    return batch
                # Its memory is free again before the same batch is made anew.
                del batch

            samples.clear()
            if verdict == "seed":
                break

        with unseeded.seeding():
            return self._make(index, positions, samples)

    def _make(self, index: Any, positions: Positions, samples: list[Any]) -> Any:
        """Loads and collates. Every small batch comes through here: a call less is seen in the rate."""
        if not self._batched:
            self._one_by_one((index,), positions, samples)
            return self.collate(samples[0], positions, index)
        if self._together:
            return self.collate(self._all_at_once(index, positions), positions, index)

        self._one_by_one(index, positions, samples)
        return self.collate(samples, positions, index)

    def load_whole(self, keys: object, positions: Positions) -> Any:
        """Returns a batch that the dataset makes itself."""
        self._activity[STAGE] = LOAD
        self._activity[PLACE] = TOGETHER
        if self._draws and self._streams is not None and len(positions):
            self._streams.enter_batch(positions)

        try:
            return self._whole(keys)  # type: ignore[misc]  # callers ask `makes_whole_batches` first
        except Exception as error:
            note(error, f"raised while loading {describe(keys)}")
            raise

    def load_one(self, place: int, key: object, position: int | None, *, spare: int = 0) -> Any:
        """Returns one sample, which has this place in its batch; None where the dataset makes whole batches.

        spare: what the activity says. Raises what the dataset raises, as it is.
        """
        activity = self._activity
        activity[STAGE] = LOAD
        activity[PLACE] = place
        activity[SPARE] = spare
        if position is None:
            positions: tuple[int, ...] = ()
        else:
            positions = (position,)

        if self._whole is not None:
            if self._draws and self._streams is not None and positions:
                self._streams.enter_batch(positions)
            if isinstance(key, (int, np.integer)):
                self._whole(np.asarray([key]))
            else:
                self._whole([key])
            return None

        if self._streams is not None and position is not None:
            self._streams.enter(SAMPLE, int(position))
        if self.loads_together:
            return self.dataset.__getitems__([key])[0]
        return self.dataset[key]

    def mark_judging(self, place: int) -> None:
        """Marks that the user's `on_error` is asked about a sample."""
        self._activity[STAGE] = JUDGE
        self._activity[PLACE] = place
        self._activity[SPARE] = 0

    def collate(self, samples: object, positions: Positions, index: object) -> Any:
        """Returns samples (or one, if there are no batches) as the collate function makes them a batch."""
        note_collation(self._activity)
        if self._streams is not None and len(positions):
            self._streams.enter(BATCH, int(positions[0]))

        try:
            if self.takes_packs and isinstance(index, PackedBatch):
                return self._collate(samples, packs=index)
            return self._collate(samples)
        except Exception as error:
            note(error, f"raised while collating {describe(index)}")
            if isinstance(index, PackedBatch) and not self.takes_packs:
                note(error, NOT_PACKED)
            raise

    def state(self) -> Any:
        if self._missing is not None:
            return self._missing
        if self._stateful:
            return state_of(self.dataset)
        return None

    def give_up_state(self, missing: MissingState) -> None:
        self._missing = missing

    def losses(self) -> Sequence[BadSample]:
        return ()

    def _all_at_once(self, keys: object, positions: Positions) -> Any:
        self._activity[STAGE] = LOAD
        self._activity[PLACE] = TOGETHER
        if self._streams is not None and len(positions):
            self._streams.enter_batch(positions)
        try:
            return self.dataset.__getitems__(keys)
        except Exception as error:
            note(error, f"raised while loading {describe(keys)}")
            raise

    def _one_by_one(self, keys: Iterable[Any], positions: Positions, samples: list[Any]) -> None:
        """Puts the samples of `keys` into `samples`, which is empty; those before one that raises stay there."""
        dataset = self.dataset
        streams = self._streams
        activity = self._activity
        # An iterator of keys could be read only once, and the key of a sample that raises is looked up below.
        if not isinstance(keys, (list, tuple)):
            keys = list(keys)

        # The loops assign straight into the shared page: if the worker dies or hangs, the main process reads there
        # which sample it was at. Where nobody watches, a plain loop is the quickest: Python calls a `__getitem__` of
        # the user's from there without leaving the interpreter, which `map` would (0.1 us for each sample).
        activity[STAGE] = LOAD
        activity[SPARE] = 0
        partial = self._partial
        began = 0.0
        if partial is not None:
            began = partial.begin()
        try:
            if partial is not None and partial.is_worth_it:
                self._part_of(keys, positions, samples, partial.places(len(keys), began))
                return

            if streams is not None and len(positions):
                for activity[PLACE], (key, position) in enumerate(zip(keys, positions, strict=True)):
                    streams.enter(SAMPLE, int(position))
                    samples.append(dataset[key])
            elif self._watched:
                for activity[PLACE], key in enumerate(keys):
                    samples.append(dataset[key])
            else:
                for key in keys:
                    samples.append(dataset[key])
        except Exception as error:
            # With all samples there, a signal handler raised it behind the last one, and no key is to blame.
            if len(samples) < len(keys):
                note_sample(error, dataset, keys[len(samples)])
            raise

        if partial is not None:
            partial.loaded(len(samples), began)

    def _part_of(self, keys: Sequence[Any], positions: Positions, samples: list[Any], places: Iterator[int]) -> None:
        """Puts the samples of the `places` that are still wanted into `samples`."""
        streams = self._streams
        seeded = streams is not None and len(positions) > 0
        for place in places:
            if seeded:
                streams.enter(SAMPLE, int(positions[place]))  # type: ignore[union-attr]  # `seeded` says so
            samples.append(self.dataset[keys[place]])

    def _try_each(self, keys: Sequence[Any], positions: Sequence[int] | None) -> None:
        for place, key in enumerate(keys):
            if positions is None:
                self.load_one(place, key, None)
            else:
                self.load_one(place, key, positions[place])
