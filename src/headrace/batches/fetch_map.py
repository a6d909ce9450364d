"""Fetches batches from a dataset, in any process, and names the key of a sample that fails.

Both fetchers follow torch's: the same calls on the dataset in the same order. `fetch` raises `StopIteration` at the
end of an iterable dataset; an exception from the dataset is raised as it is, with a note that names the sample.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import getitem
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.batches.whole_batches import draws_numbers, whole_batches
from headrace.core.activity import JUDGE, LOAD, PLACE, SPARE, STAGE, TOGETHER, Mark, mark_collation, private_mark
from headrace.core.lengths import known_length
from headrace.core.rng import BATCH, SAMPLE, SampleStreams
from headrace.core.signal_handlers import is_of_signal_handler
from headrace.core.unseeded import Unseeded
from headrace.faults.bad_sample import BadSample

SHOWN_KEYS = 8


class Positioned(NamedTuple):
    """What an index sampler gave, with the position in the epoch of each sample in it."""

    index: Any
    positions: range | npt.NDArray[np.int64]


class Careful(NamedTuple):
    """An index whose batch killed a worker while all its samples were being made at once: now each is tried alone."""

    index: Any


@runtime_checkable
class Stateful(Protocol):
    """Something whose state can be saved and restored; the protocol of torchdata."""

    def state_dict(self) -> Any:
        """Returns the state."""

    def load_state_dict(self, state_dict: Any) -> None:
        """Restores what `state_dict` returned."""


def is_stateful(thing: Any) -> TypeGuard[Stateful]:
    """Tells what `isinstance(thing, Stateful)` tells, in a hundredth of the time."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def may_have_states(dataset: Any, *, is_map: bool) -> bool:
    """Tells whether a dataset has a state, or if iterators over it may have one. Generators have none."""
    if is_map or is_stateful(dataset):
        return is_stateful(dataset)
    return not inspect.isgeneratorfunction(getattr(type(dataset), "__iter__", None))


class Fetcher(Protocol):
    """Makes one batch after the other."""

    def fetch(self, index: Any) -> Any:
        """Returns the batch for what the index sampler gave: a key, a list of keys, or either as `Positioned`."""

    def state(self) -> Any:
        """Returns what is needed to go on after the last batch in another process; None if that is nothing."""

    def losses(self) -> Sequence[BadSample]:
        """Returns what became of the bad samples of the last batch."""


class MapFetcher:
    """Fetches from a dataset with `__getitem__` or `__getitems__`."""

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        collate: Callable[[Any], Any],
        streams: SampleStreams | None = None,
        mark: Mark | None = None,
        *,
        watched: bool = False,
        unseeded: Unseeded | None = None,
    ) -> None:
        self.dataset = dataset
        self._batched = batched
        self._collate = collate
        self._streams = streams
        if mark is None:
            self._mark = private_mark()
        else:
            self._mark = mark

        self._watched = watched
        self._stateful = is_stateful(dataset)
        if batched:
            self._whole = whole_batches(dataset, collate)
        else:
            self._whole = None

        self._draws = streams is not None and draws_numbers(dataset)
        self._unseeded: Unseeded | None = None
        if unseeded is not None:
            self.try_unseeded(unseeded)

    def try_unseeded(self, unseeded: Unseeded) -> None:
        """Makes batches without seeds first, where that is possible."""
        if self._streams is None or self._stateful or self._whole is not None:
            return  # a dataset with a state would count what is made twice
        self._unseeded = unseeded

    @property
    def tries_unseeded(self) -> bool:
        """Whether batches are made without seeds first, so that nobody has to look after the global generators."""
        return self._unseeded is not None and self._unseeded.first

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
        return self._whole is not None or bool(self._batched and getattr(self.dataset, "__getitems__", None))

    def fetch(self, index: Any, samples: list[Any] | None = None) -> Any:
        """See `Fetcher.fetch`. Samples that are loaded one by one go into `samples`, also if a later one raises."""
        if type(index) is Careful:
            index = index.index
            self._try_each(*split(index, batched=self._batched))

        positions: Sequence[int] | npt.NDArray[np.int64] = ()
        if type(index) is Positioned:
            index, positions = index
        if self._whole is not None:
            return self.load_whole(index, positions)
        if samples is None:
            samples = []
        if self._unseeded is not None and self._unseeded.first and len(positions):
            return self._unseeded_first(self._unseeded, index, positions, samples)
        return self._make(index, positions, samples)

    def _unseeded_first(self, unseeded: Unseeded, index: Any, positions: Any, samples: list[Any]) -> Any:
        """Returns a batch that is made without seeds, and again with them if anybody has drawn random numbers."""
        while unseeded.begin():
            try:
                batch = self._make(index, (), samples)
            except BaseException as error:
                verdict = unseeded.end()
                if verdict == "good" or not isinstance(error, Exception) or is_of_signal_handler(error):
                    raise
            else:
                verdict = unseeded.end()
                if verdict == "good":
                    return batch
                del batch

            samples.clear()
            if verdict == "seed":
                break

        with unseeded.seeding():
            return self._make(index, positions, samples)

    def _make(self, index: Any, positions: Any, samples: list[Any]) -> Any:
        if not self._batched:
            self._one_by_one((index,), positions, samples)
            return self.collate(samples[0], positions, index)
        return self.collate(self._samples(index, positions, samples), positions, index)

    def load_whole(self, keys: Any, positions: Any) -> Any:
        """Returns a batch that the dataset makes itself."""
        self._mark[STAGE] = LOAD
        self._mark[PLACE] = TOGETHER
        if self._draws and self._streams is not None and len(positions):
            self._streams.enter_batch(positions)

        try:
            return self._whole(keys)  # type: ignore[misc]  # or nobody calls this
        except Exception as error:
            note(error, f"raised while loading {describe(keys)}")
            raise

    def load_one(self, place: int, key: Any, position: int | None, *, spare: int = 0) -> Any:
        """Returns one sample, which has this place in its batch; None where the dataset makes whole batches.

        spare: what the mark says. Raises what the dataset raises, as it is.
        """
        mark = self._mark
        mark[STAGE] = LOAD
        mark[PLACE] = place
        mark[SPARE] = spare
        if position is None:
            positions: tuple[int, ...] = ()
        else:
            positions = (position,)

        if self._whole is not None:
            if self._draws and self._streams is not None and positions:
                self._streams.enter_batch(positions)
            self._whole(np.asarray([key]) if isinstance(key, (int, np.integer)) else [key])
            return None

        if self._streams is not None and position is not None:
            self._streams.enter(SAMPLE, int(position))
        if self.loads_together:
            return self.dataset.__getitems__([key])[0]
        return self.dataset[key]

    def mark_judging(self, place: int) -> None:
        """Marks that the user's `on_error` is asked about a sample."""
        self._mark[STAGE] = JUDGE
        self._mark[PLACE] = place
        self._mark[SPARE] = 0

    def collate(self, samples: Any, positions: Any, index: Any) -> Any:
        """Returns samples (or one, if there are no batches) as the collate function makes them a batch."""
        mark_collation(self._mark)
        if self._streams is not None and len(positions):
            self._streams.enter(BATCH, int(positions[0]))

        try:
            return self._collate(samples)
        except Exception as error:
            note(error, f"raised while collating {describe(index)}")
            raise

    def state(self) -> Any:
        """See `Fetcher.state`."""
        if self._stateful:
            return self.dataset.state_dict()
        return None

    def losses(self) -> Sequence[BadSample]:
        """See `Fetcher.losses`."""
        return ()

    def _samples(self, keys: Any, positions: Any, samples: list[Any]) -> Any:
        if self.loads_together:
            self._mark[STAGE] = LOAD
            self._mark[PLACE] = TOGETHER
            if self._streams is not None and len(positions):
                self._streams.enter_batch(positions)
            try:
                return self.dataset.__getitems__(keys)
            except Exception as error:
                note(error, f"raised while loading {describe(keys)}")
                raise

        self._one_by_one(keys, positions, samples)
        return samples

    def _one_by_one(self, keys: Iterable[Any], positions: Any, samples: list[Any]) -> None:
        """Puts the samples of `keys` into `samples`, which is empty; those before one that raises stay there."""
        dataset = self.dataset
        streams = self._streams
        mark = self._mark
        if not isinstance(keys, (list, tuple)):
            keys = list(keys)

        mark[STAGE] = LOAD
        mark[SPARE] = 0
        try:
            if streams is not None and len(positions):
                for mark[PLACE], (key, position) in enumerate(zip(keys, positions, strict=True)):
                    streams.enter(SAMPLE, int(position))
                    samples.append(dataset[key])
            elif self._watched:
                for mark[PLACE], key in enumerate(keys):
                    samples.append(dataset[key])
            else:
                samples.extend(map(getitem, repeat(dataset), keys))
                if len(samples) < len(keys):
                    raise StopIteration  # a sample raised it, and `extend` took it for the end of the keys
        except Exception as error:
            if len(samples) < len(keys):  # else a signal handler raised it, behind the last sample
                key = keys[len(samples)]
                note(error, f"raised while loading the sample with key {key!r}")
                note_length(error, dataset, key)
            raise

    def _try_each(self, keys: Sequence[Any], positions: Sequence[int] | None) -> None:
        for place, key in enumerate(keys):
            self.load_one(place, key, None if positions is None else positions[place])


def plain_index(index: Any) -> Any:
    """Returns an index as the index sampler gave it."""
    if type(index) is Careful:
        return index.index
    return index


def split(index: Any, *, batched: bool) -> tuple[Sequence[Any], Sequence[int] | None]:
    """Returns the keys and the positions that an index holds, one of each for a sample; None: it has no positions."""
    positions = None
    if type(index) is Positioned:
        index, positions = index.index, [int(position) for position in index.positions]
    if isinstance(index, np.ndarray):
        index = index.tolist()
    return (list(index) if batched else [index]), positions


def note(error: Exception, text: str) -> None:
    """Adds to an exception's text without changing the exception (PEP 678)."""
    error.add_note(f"headrace: {text}")


def note_length(error: Exception, dataset: Any, key: Any) -> None:
    """Says so if an exception looks like that of a dataset that is shorter than its `__len__`."""
    if not isinstance(error, IndexError) or not isinstance(key, (int, np.integer)) or not hasattr(dataset, "__len__"):
        return

    length = known_length(dataset)
    if length is None:
        return

    if key >= length:
        note(error, f"the sampler gave key {key}, but len(dataset) is {length}")
    else:
        note(error, f"len(dataset) is {length}, so key {key} should exist: the length may be wrong")


def describe(index: Any) -> str:
    """Names the keys of a batch, the first few of them if there are many."""
    if isinstance(index, np.ndarray):
        index = index.tolist()
    if not isinstance(index, (list, tuple)):
        return f"the sample with key {index!r}"

    shown = ", ".join(repr(key) for key in index[:SHOWN_KEYS])
    if len(index) > SHOWN_KEYS:
        more = f", ... ({len(index)} in all)"
    else:
        more = ""

    return f"the batch with keys {shown}{more}"
