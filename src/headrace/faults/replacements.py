"""Which sample takes the place of a bad one: a function of the place, drawn from what the sampler draws from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from headrace.core.protocols import says_yes
from headrace.core.randomness.counter_based import stream_key
from headrace.core.spans import SpanKey
from headrace.samplers.kept import KeptSampler

TRIES = 32
"""Samples that are tried in the place of one bad sample. If one in two is bad, all of them are once in 10**9."""

SPARE = 0x7370617265
"""Sets these random numbers apart from others of the same seed, epoch and position."""


class Replacements(NamedTuple):
    """What replacements are drawn from: `keys`, or the numbers below `size`; with neither, the keys of the batch."""

    size: int = 0
    keys: npt.NDArray[np.int64] | None = None
    edges: npt.NDArray[np.int64] | None = None
    """Where the sources of a mixture begin among the numbers, and the last one ends."""

    def candidates(self, bad: Any, *words: int, batch: Sequence[Any]) -> Iterator[Any]:
        """Yields up to `TRIES` keys other than `bad` at random; `words` name the place. Those of `batch` come last.

        Without keys of its own it yields those of the batch, each once. In a mixture it yields keys of the source of
        `bad`, which keep its weights, and then those of the batch.
        """
        if self.edges is not None:
            source = int(np.searchsorted(self.edges, bad, "right"))
            first, end = self.edges[source - 1 : source + 1].tolist()
            yield from _drawn(end - first, lambda number: first + number, bad, *words, batch=batch)
        elif self.keys is not None:
            yield from _drawn(self.size, self.keys.item, bad, *words, batch=batch)
        elif self.size:
            yield from _drawn(self.size, int, bad, *words, batch=batch)

        if not self.size or self.edges is not None:
            yield from _shuffled(list(batch), *words)


def of_its_span(bad: SpanKey, *words: int, batch: Sequence[Any]) -> Iterator[SpanKey]:
    """Yields up to `TRIES` keys of the span of a bad sample at random, as `Replacements.candidates` does."""

    def key_of(row: int) -> SpanKey:
        return SpanKey(bad.feed, bad.span, row)

    yield from _drawn(bad.span.count, key_of, bad, *words, batch=batch)


def _drawn(size: int, key_of: Callable[[int], Any], bad: Any, *words: int, batch: Sequence[Any]) -> Iterator[Any]:
    held = set(map(repr, batch))
    if size <= TRIES:
        keys = [key for key in map(key_of, range(size)) if repr(key) != repr(bad)]
        yield from sorted(_shuffled(keys, *words), key=lambda key: repr(key) in held)
        return

    # In a dataset not much larger than a batch, nearly every candidate is in the batch already; a sample that comes
    # twice is better than none.
    if size <= 4 * len(batch):
        held = set()
    held.add(repr(bad))

    given = 0
    for attempt in range(4 * TRIES):
        # Off uniform by at most size / 2**64.
        key = key_of(stream_key(SPARE, *words, attempt) % size)
        if repr(key) not in held:
            given += 1
            yield key

        if given == TRIES:
            return


def _shuffled(keys: list[Any], *words: int) -> Iterator[Any]:
    for attempt in range(min(len(keys), TRIES)):
        yield keys.pop(stream_key(SPARE, *words, attempt) % len(keys))


def replacements_of(
    index_sampler: object, dataset: object, excluded: npt.NDArray[np.int64] | None = None
) -> Replacements:
    """Returns what replacements are drawn from for an index sampler.

    Samplers that take every sample alike are drawn from as a whole, mixtures source by source. Any other may have its
    reasons (weights, a part of the data, lengths): then a batch's replacements come out of the batch.
    """
    if isinstance(index_sampler, BatchSampler):
        sampler: Any = index_sampler.sampler
    else:
        sampler = index_sampler

    if type(sampler) in (SubsetRandomSampler, KeptSampler):
        return _listed(np.asarray(sampler.indices))

    edges = getattr(sampler, "source_edges", None)
    if isinstance(edges, np.ndarray):
        return Replacements(int(edges[-1]), edges=edges)

    alike = (SequentialSampler, RandomSampler, DistributedSampler)
    takes_all = type(sampler) in alike or says_yes(sampler, "takes_all_alike")
    if not takes_all or not isinstance(dataset, Sized):
        return Replacements()
    if excluded is not None and len(excluded):
        return _listed(np.delete(np.arange(len(dataset)), excluded))
    return Replacements(len(dataset))


def _listed(keys: npt.NDArray[Any]) -> Replacements:
    if np.issubdtype(keys.dtype, np.integer):
        return Replacements(len(keys), keys.astype(np.int64))
    return Replacements()


def word_of(key: object) -> int:
    """Returns a number for any key, the same in every process."""
    # Not `hash`: that of text differs from process to process.
    return crc32(repr(key).encode())
