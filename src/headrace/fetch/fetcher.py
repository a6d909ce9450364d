"""Fetches batches from a data set, in any process, and names the key of a sample that fails.

Both fetchers follow torch's: the same calls on the data set in the same order. `fetch` raises `StopIteration` at the
end of an iterable data set; an exception from the data set is raised as it is, with a note that names the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.core.streams import BATCH, SAMPLE, SampleStreams
from headrace.fetch.whole import draws_numbers, whole_batches

SHOWN_KEYS = 8


class Positioned(NamedTuple):
    """What an index sampler gave, with the position in the epoch of each sample in it."""

    index: Any
    positions: range | npt.NDArray[np.int64]


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


class Fetcher(Protocol):
    """Makes one batch after the other."""

    def fetch(self, index: Any) -> Any:
        """Returns the batch for what the index sampler gave: a key, a list of keys, or either as `Positioned`."""

    def state(self) -> Any:
        """Returns what is needed to go on after the last batch in another process; None if that is nothing."""


class MapFetcher:
    """Fetches from a data set with `__getitem__` or `__getitems__`."""

    def __init__(
        self, dataset: Any, batched: bool, collate: Callable[[Any], Any], streams: SampleStreams | None = None
    ) -> None:
        self._dataset = dataset
        self._batched = batched
        self._collate = collate
        self._streams = streams
        self._stateful = is_stateful(dataset)
        self._whole = whole_batches(dataset, collate) if batched else None
        self._draws = streams is not None and draws_numbers(dataset)

    def fetch(self, index: Any) -> Any:
        """See `Fetcher.fetch`."""
        positions: Sequence[int] | npt.NDArray[np.int64] = ()
        if type(index) is Positioned:
            index, positions = index
        if self._whole is not None:
            if self._draws and self._streams is not None and len(positions):
                self._streams.enter_batch(positions)
            return self._whole_batch(self._whole, index)
        samples = self._samples(index, positions) if self._batched else self._one_by_one((index,), positions)[0]
        if self._streams is not None and len(positions):
            self._streams.enter(BATCH, int(positions[0]))
        try:
            return self._collate(samples)
        except Exception as error:
            note(error, f"raised while collating {describe(index)}")
            raise

    def state(self) -> Any:
        """See `Fetcher.state`."""
        return self._dataset.state_dict() if self._stateful else None

    def _whole_batch(self, fetch: Callable[[Any], Any], keys: Any) -> Any:
        try:
            return fetch(keys)
        except Exception as error:
            note(error, f"raised while loading {describe(keys)}")
            raise

    def _samples(self, keys: Any, positions: Any) -> Any:
        if getattr(self._dataset, "__getitems__", None):
            if self._streams is not None and len(positions):
                self._streams.enter_batch(positions)
            try:
                return self._dataset.__getitems__(keys)
            except Exception as error:
                note(error, f"raised while loading {describe(keys)}")
                raise
        return self._one_by_one(keys, positions)

    def _one_by_one(self, keys: Iterable[Any], positions: Any) -> list[Any]:
        dataset, streams, samples, key = self._dataset, self._streams, [], None
        try:
            if streams is None:
                for key in keys:
                    samples.append(dataset[key])
            else:
                for key, position in zip(keys, positions, strict=True):
                    streams.enter(SAMPLE, int(position))
                    samples.append(dataset[key])
        except Exception as error:
            note(error, f"raised while loading the sample with key {key!r}")
            raise
        return samples


def note(error: Exception, text: str) -> None:
    """Adds to an exception's text without changing the exception (PEP 678)."""
    error.add_note(f"headrace: {text}")


def describe(index: Any) -> str:
    """Names the keys of a batch, the first few of them if there are many."""
    if isinstance(index, np.ndarray):
        index = index.tolist()
    if not isinstance(index, (list, tuple)):
        return f"the sample with key {index!r}"
    shown = ", ".join(repr(key) for key in index[:SHOWN_KEYS])
    more = f", ... ({len(index)} in all)" if len(index) > SHOWN_KEYS else ""
    return f"the batch with keys {shown}{more}"
