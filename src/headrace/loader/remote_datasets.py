"""Datasets whose data lie elsewhere, also as parts of others: where, and which byte ranges samples of them are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset

from headrace.core.protocols import answers, says_yes
from headrace.core.text.urls import shown_url
from headrace.faults.bad_sample import LONGEST_NESTING
from headrace.samplers.key_arrays import Keys
from headrace.storage.fetching.ranges import ByteRange

RangesOf = Callable[[Keys], list[ByteRange]]


def lies_elsewhere(dataset: Any) -> bool:
    """Tells whether a dataset, or one that it is made of, reads from an object store or a server."""
    return any(says_yes(part, "lies_elsewhere") for part in _parts(dataset))


def place_of(dataset: Any) -> str:
    """Returns where the data of a dataset lie that reads from elsewhere, without secrets; empty if it is not known."""
    for part in _parts(dataset):
        place = getattr(part, "place", None)
        if isinstance(place, str) and says_yes(part, "lies_elsewhere"):
            return shown_url(place)

    return ""


def ranges_of(dataset: Any) -> RangesOf | None:
    """Returns what tells which byte ranges samples of a dataset are; None if there are none, or nobody knows."""
    if type(dataset) is Subset:
        return _ranges_of_subset(dataset)
    if type(dataset) is ConcatDataset:
        return _ranges_of_concat(dataset)
    if type(dataset) is StackDataset:
        return _ranges_of_stack(dataset)

    if says_yes(dataset, "lies_elsewhere") and answers(dataset, "byte_ranges", 1):
        return dataset.byte_ranges  # type: ignore[no-any-return]  # `answers` has looked
    return None


def _parts(dataset: Any) -> Iterator[Any]:
    """Yields a dataset and those that it is made of, from the outermost on."""
    for _ in range(LONGEST_NESTING):
        yield dataset
        for part in _members(dataset):
            yield from _parts(part)

        dataset = getattr(dataset, "dataset", None)
        if dataset is None:
            return


def _members(dataset: Any) -> Sequence[Any]:
    """Returns the datasets that one of torch's classes puts together."""
    if not isinstance(dataset, (ConcatDataset, StackDataset, ChainDataset)):
        return ()
    members = dataset.datasets
    if isinstance(members, Mapping):
        return list(members.values())
    return list(members)


def _ranges_of_subset(dataset: Subset[Any]) -> RangesOf | None:
    inner = ranges_of(dataset.dataset)
    if inner is None:
        return None
    indices = np.asarray(dataset.indices, np.int64)
    return lambda keys: inner(indices[keys])


def _ranges_of_concat(dataset: ConcatDataset[Any]) -> RangesOf | None:
    inner = [ranges_of(member) for member in dataset.datasets]
    if not any(inner):
        return None
    stops = np.asarray(dataset.cumulative_sizes, np.int64)
    starts = np.concatenate([[0], stops[:-1]])

    def ranges(keys: Keys) -> list[ByteRange]:
        keys = np.where(keys < 0, keys + stops[-1], keys)
        members = np.searchsorted(stops, keys, side="right")
        found = []
        for member in np.unique(members).tolist():
            of_member = inner[member]
            if of_member is not None:
                found += of_member(keys[members == member] - starts[member])
        return found

    return ranges


def _ranges_of_stack(dataset: StackDataset[Any]) -> RangesOf | None:
    inner = []
    for member in _members(dataset):
        of_member = ranges_of(member)
        if of_member is not None:
            inner.append(of_member)
    if not inner:
        return None

    def ranges(keys: Keys) -> list[ByteRange]:
        found = []
        for of_member in inner:
            found += of_member(keys)
        return found

    return ranges
