"""The keys of a batch as one array instead of a list: the same keys, drawn from the same generators, many times faster.

For datasets that fetch whole batches. Only samplers whose code is known are replaced: torch's own, and ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from headrace.samplers.sampler import PositionalSampler

Keys = npt.NDArray[np.int64]

CHUNK = 1 << 16


def key_arrays(index_sampler: Any) -> Iterator[Keys] | None:
    """Returns an iterator over the batches of an index sampler, each int64 [batch]; None if its code is not known.

    Nothing is drawn before the first batch is asked for, as in torch's samplers.
    """
    if type(index_sampler) is not BatchSampler:
        return None

    sampler = index_sampler.sampler
    size = index_sampler.batch_size
    if isinstance(sampler, PositionalSampler) and type(sampler).__iter__ is PositionalSampler.__iter__:
        return sampler.key_arrays(size, drop_last=index_sampler.drop_last)
    if type(sampler) is SequentialSampler:
        return batched(_ascending(len(sampler)), size, drop_last=index_sampler.drop_last)
    if type(sampler) is RandomSampler and not sampler.replacement:
        return batched(_permutations(sampler), size, drop_last=index_sampler.drop_last)
    return None


def key_lists(index_sampler: Any) -> Iterator[list[int]] | None:
    """Returns the same batches as lists, of a sampler of headrace's; None if its code is not known."""
    sampler = index_sampler.sampler
    if key_arrays(index_sampler) is None:
        return None
    lists: Iterator[list[int]] = sampler.key_lists(index_sampler.batch_size, drop_last=index_sampler.drop_last)
    return lists


def _ascending(length: int) -> Iterator[Keys]:
    for start in range(0, length, CHUNK):
        yield np.arange(start, min(start + CHUNK, length), dtype=np.int64)


def _permutations(sampler: RandomSampler) -> Iterator[Keys]:
    """Draws what `RandomSampler.__iter__` draws, when it draws it."""
    length = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))

    passes = 0
    rest = 0
    if length:
        passes, rest = divmod(sampler.num_samples, length)

    for _ in range(passes):
        yield torch.randperm(length, generator=generator).numpy()

    # torch's code draws a permutation for the rest even if there is none. A generator of the user's must go on as far
    # as with that code; one of our own nobody sees.
    if rest or sampler.generator is not None:
        yield torch.randperm(length, generator=generator).numpy()[:rest]


def batched(chunks: Iterator[Keys], size: int, *, drop_last: bool) -> Iterator[Keys]:
    """Cuts chunks of any length into batches; the next chunk is asked for only when its keys are needed."""
    return itertools.chain.from_iterable(_in_rows(chunks, size, drop_last=drop_last))


def _in_rows(chunks: Iterator[Keys], size: int, *, drop_last: bool) -> Iterator[Iterable[Keys]]:
    """Yields batches of `size` as the rows of arrays, over which Python iterates without a line of code."""
    rest = np.empty(0, np.int64)
    for chunk in chunks:
        if len(rest) == 0:
            keys = chunk
        else:
            keys = np.concatenate([rest, chunk])

        whole = len(keys) // size * size
        yield keys[:whole].reshape(-1, size)
        rest = keys[whole:]

    if len(rest) and not drop_last:
        yield [rest]
