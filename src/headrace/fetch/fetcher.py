"""Fetches batches from a data set, in any process, and names the key of a sample that fails.

Both fetchers follow torch's: the same calls on the data set in the same order. `fetch` raises `StopIteration` at the
end of an iterable data set; an exception from the data set is raised as it is, with a note that names the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from headrace.core.torch_internals import DatasetKind

SHOWN_KEYS = 8


class Fetcher(Protocol):
    """Makes one batch after the other."""

    def fetch(self, index: Any) -> Any:
        """Returns the batch for what the index sampler gave: a key, or a list of keys."""


class MapFetcher:
    """Fetches from a data set with `__getitem__` or `__getitems__`."""

    def __init__(self, dataset: Any, batched: bool, collate: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._batched = batched
        self._collate = collate

    def fetch(self, index: Any) -> Any:
        """See `Fetcher.fetch`."""
        samples = self._samples(index) if self._batched else self._one_by_one((index,))[0]
        try:
            return self._collate(samples)
        except Exception as error:
            _note(error, f"raised while collating {_describe(index)}")
            raise

    def _samples(self, keys: Any) -> Any:
        if getattr(self._dataset, "__getitems__", None):
            try:
                return self._dataset.__getitems__(keys)
            except Exception as error:
                _note(error, f"raised while loading {_describe(keys)}")
                raise
        return self._one_by_one(keys)

    def _one_by_one(self, keys: Iterable[Any]) -> list[Any]:
        dataset, samples, key = self._dataset, [], None
        try:
            for key in keys:
                samples.append(dataset[key])
        except Exception as error:
            _note(error, f"raised while loading the sample with key {key!r}")
            raise
        return samples


class IterableFetcher:
    """Fetches from an iterator over a data set; each fetcher runs through the data set once."""

    def __init__(self, dataset: Any, batched: bool, collate: Callable[[Any], Any], drop_last: bool) -> None:
        self._iterator: Iterator[Any] = iter(dataset)
        self._batched = batched
        self._collate = collate
        self._drop_last = drop_last
        self._ended = False
        self._position = 0

    def fetch(self, index: Any) -> Any:
        """See `Fetcher.fetch`."""
        if self._ended:
            raise StopIteration
        samples = self._take(len(index)) if self._batched else self._next()
        try:
            return self._collate(samples)
        except Exception as error:
            _note(error, f"raised while collating samples up to number {self._position - 1} of this iterator")
            raise

    def _take(self, count: int) -> list[Any]:
        samples: list[Any] = []
        for _ in range(count):
            try:
                samples.append(self._next())
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._drop_last and len(samples) < count):
            raise StopIteration
        return samples

    def _next(self) -> Any:
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            _note(error, f"raised while loading sample number {self._position} of this iterator")
            raise
        self._position += 1
        return sample


def make_fetcher(kind: int, dataset: Any, batched: bool, collate: Callable[[Any], Any], drop_last: bool) -> Fetcher:
    """Returns the fetcher for a kind of data set (torch's `_DatasetKind`). May run the data set's `__iter__`."""
    if kind == DatasetKind.Map:
        return MapFetcher(dataset, batched, collate)
    return IterableFetcher(dataset, batched, collate, drop_last)


def _note(error: Exception, text: str) -> None:
    """Adds to an exception's text without changing the exception (PEP 678)."""
    error.add_note(f"headrace: {text}")


def _describe(index: Any) -> str:
    if not isinstance(index, (list, tuple)):
        return f"the sample with key {index!r}"
    shown = ", ".join(repr(key) for key in index[:SHOWN_KEYS])
    more = f", ... ({len(index)} in all)" if len(index) > SHOWN_KEYS else ""
    return f"the batch with keys {shown}{more}"
