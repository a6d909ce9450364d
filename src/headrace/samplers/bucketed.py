"""Batches of samples of similar length: so many samples, or so many tokens, in each."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.randomness.counter_based import stream_key
from headrace.packing.shapes import LONGEST, best_lengths, counts_of
from headrace.samplers.lengths import array_of, digest_of_lengths
from headrace.samplers.packed_batch import PackedBatch, PieceBounds
from headrace.samplers.sampler import Dealing, Keys, State, positive
from headrace.samplers.windowed import BATCHES, Batch, WindowedBatchSampler, group_of, shuffled, shuffled_in_groups

Lengths = npt.NDArray[Any]


@dataclass(frozen=True)
class SortedWindow:
    """A window that is sorted and cut: batch i holds the samples `edges[turns[i]] : edges[turns[i] + 1]`."""

    number: int
    keys: Keys
    positions: Keys
    lengths: Lengths
    edges: list[int]
    turns: list[int]
    shape_of: Callable[[int], tuple[int, int]] | None
    """Tells the shape of a batch by its longest sample; None: batches are as they come."""

    def __len__(self) -> int:
        return len(self.turns)

    def batch(self, number: int) -> Batch:
        """Returns batch `number`, counted in the order in which they come."""
        turn = self.turns[number]
        cut = slice(self.edges[turn], self.edges[turn + 1])
        keys, positions = self.keys[cut], self.positions[cut].copy()
        if self.shape_of is None:
            return Batch(keys, positions)

        lengths = self.lengths[cut].astype(np.int64)
        rows, row = self.shape_of(int(lengths[0]))
        # Each sample is a pack of its own; where samples are too few, the last packs are empty.
        edges = np.minimum(np.arange(rows + 1), len(keys))
        return PackedBatch(keys, positions, PieceBounds(np.zeros_like(lengths), lengths, lengths, edges), row)


class BucketedBatchSampler(WindowedBatchSampler):
    """Sorts each window by length, and cuts it into batches, which come in random order.

    Without `shuffle`, the batches of a window come by descending length. Sorting takes a second for some 5 million
    samples. Memory: the lengths (an array is not copied) and one window.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike | torch.Tensor,
        window: int,
        *,
        shapes: int | None,
        shuffle: bool,
        seed: int,
        **dealing: Unpack[Dealing],
    ) -> None:
        self.lengths = checked_lengths(lengths)
        self._digest = digest_of_lengths(self.lengths)
        super().__init__(len(self.lengths), window, shuffle=shuffle, seed=seed, **dealing)
        self.rows: list[int] | None = None
        """The lengths to which samples are padded, ascending; None: each batch to its longest."""
        if shapes is not None:
            self.rows = self._chosen_rows(positive("shapes", shapes))

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have: the number of lengths."""
        return len(self.lengths)

    def _chosen_rows(self, shapes: int) -> list[int]:
        if self.lengths.dtype.kind == "f":
            raise wrong_argument("shapes", shapes, "None, where lengths are not whole numbers")
        if self._longest() > LONGEST:
            found = f"a longest sample of {self._longest():,}"
            raise wrong_argument("shapes", shapes, f"None, where a sample is longer than {LONGEST:,}", found=found)
        counts = counts_of(self.lengths, self._longest())
        # A row has at least one token, also of a sample without any.
        counts[0] = 0
        return best_lengths(counts, shapes) or [1]

    def _longest(self) -> int:
        """Returns how long a sample may be that is not left out."""
        return int(self.lengths.max(initial=0))

    @abstractmethod
    def _rows_of(self, row: int) -> int:
        """Returns how many samples of this padded length a batch has."""

    def _row_of(self, longest: int) -> int:
        """Returns the length to which a batch is padded, by its longest sample."""
        if self.rows is None:
            return longest
        return self.rows[bisect_left(self.rows, longest)]

    def _shape_of(self, longest: int) -> tuple[int, int]:
        row = self._row_of(longest)
        return self._rows_of(row), row

    @abstractmethod
    def _edges(self, lengths: Lengths) -> list[int]:
        """Returns where batches begin and the last one ends, for lengths in descending order; [0] if there are none."""

    def _plan(self, epoch: int, number: int, keys: Keys, positions: Keys) -> SortedWindow:
        lengths = self.lengths[keys]
        order = np.argsort(-lengths, kind="stable")
        edges = self._edges(lengths[order])
        turns = np.arange(len(edges) - 1)
        if self.shuffle:
            turns = self._shuffled(turns, number, stream_key(self._stream(BATCHES, epoch), number))
        shape_of = self._shape_of if self.rows is not None else None
        return SortedWindow(number, keys[order], positions[order], lengths[order], edges, turns.tolist(), shape_of)

    def _shuffled(self, turns: Keys, window: int, stream: int) -> Keys:
        """Returns the batches of a window, which are numbered by descending length, in the order in which they come."""
        return shuffled(turns, stream)

    def _identity(self) -> State:
        more = {"window_size": self.window, "shuffle": self.shuffle, "digest": self._digest, "rows": self.rows}
        return {"total": len(self.lengths), "seed": self.seed, **more}


class LengthBucketBatchSampler(BucketedBatchSampler):
    """Batches of `batch_size` samples of similar length.

    In each step the ranks get batches of similar length, so that none waits for another: an eighth of a window's
    batches, rounded down to a power of two, stay together as a group. It suits as many ranks, or half as many, and so
    on; take a window of 8 batches for each rank if there are more than 8.

    Args:
        lengths: the length of each sample, non-negative numbers, shape (n,).
        batch_size: samples of a batch.
        window: samples that are sorted together, rounded up to whole groups of batches; by default 64 batches. Larger
            windows pad less and shuffle less.
        shuffle: whether each epoch has another order; otherwise windows follow the dataset, and their batches come by
            descending length.
        shapes: as in `MaxTokensBatchSampler`; all batches then have `batch_size` rows.
        drop_last: leaves out the samples at the end of the shuffled order that do not fill a batch. Otherwise these
            come as the last batch.
        seed: of the order.
        dealing: `rank`, `world_size` and `uneven`, as in `DistributedSampler`, but `uneven` counts batches.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> sampler = headrace.samplers.LengthBucketBatchSampler([9, 2, 8, 3], batch_size=2, shuffle=False)
        >>> list(sampler)
        [[0, 2], [3, 1]]
    """

    def __init__(
        self,
        lengths: npt.ArrayLike | torch.Tensor,
        batch_size: int,
        *,
        window: int | None = None,
        shapes: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        **dealing: Unpack[Dealing],
    ) -> None:
        self.batch_size = size = positive("batch_size", batch_size)
        self._drop_last = drop_last
        if window is None:
            window = 64 * size
        batches = -(-positive("window", window) // size)
        self._group = group_of(batches)
        window = -(-batches // self._group) * self._group * size

        super().__init__(lengths, window, shapes=shapes, shuffle=shuffle, seed=seed, **dealing)
        if drop_last:
            self._samples -= self._samples % size

    def _rows_of(self, row: int) -> int:
        return self.batch_size

    def _edges(self, lengths: Lengths) -> list[int]:
        return [*range(0, len(lengths), self.batch_size), len(lengths)]

    def _shuffled(self, turns: Keys, window: int, stream: int) -> Keys:
        full = min(self.window, self._samples - window * self.window) // self.batch_size
        # In the last window only, some batches fill no group, and the last one may not be full.
        return np.concatenate([shuffled_in_groups(full, self._group, stream), turns[full:]])

    def _total(self, epoch: int) -> int:
        return -(-self._samples // self.batch_size)

    def _identity(self) -> State:
        more = {"batch_size": self.batch_size, "drop_last": self._drop_last, "group": self._group}
        return {**super()._identity(), **more}


class MaxTokensBatchSampler(BucketedBatchSampler):
    """Batches of similar length whose padded size, samples x longest, is at most `max_tokens`.

    The number of batches depends on the epoch. To count them, `len()` cuts all windows of the epoch, at some 5 million
    samples per second, and keeps the number for the epoch. Nothing else needs it.

    Args:
        lengths: the length of each sample, non-negative numbers, shape (n,).
        max_tokens: the largest padded size of a batch.
        max_samples: the largest number of samples in a batch; None: no limit.
        too_long: a sample longer than `max_tokens` is an error with `"raise"`, left out with `"skip"`, and a batch of
            its own with `"alone"`.
        window: samples that are sorted together.
        shapes: at most so many shapes in all batches of all epochs, so that compiled models compile as often: samples
            are padded to those lengths that pad the whole dataset least. Batches are then `PackedBatch`es with one
            sample in each pack, which `headrace.collate_packed` pads, with packs without samples where it must. None:
            any shapes.
        shuffle: as in `LengthBucketBatchSampler`.
        seed: of the order.
        dealing: `rank`, `world_size` and `uneven`, as in `DistributedSampler`, but `uneven` counts batches.

    Raises:
        UsageError: wrong arguments, or a sample that is too long.

    Examples:
        >>> sampler = headrace.samplers.MaxTokensBatchSampler([9, 2, 8, 3], max_tokens=18, shuffle=False)
        >>> list(sampler)
        [[0, 2], [3, 1]]
    """

    batches_vary = True

    length_takes_long = True

    def __init__(  # noqa: PLR0913 - how samples are put together, and in which order
        self,
        lengths: npt.ArrayLike | torch.Tensor,
        max_tokens: int,
        *,
        max_samples: int | None = None,
        too_long: Literal["raise", "skip", "alone"] = "raise",
        window: int = 8192,
        shapes: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        **dealing: Unpack[Dealing],
    ) -> None:
        self.max_tokens = positive("max_tokens", max_tokens)
        if max_samples is None:
            self.max_samples = None
        else:
            self.max_samples = positive("max_samples", max_samples)

        self.too_long = too_long
        self._counted: tuple[int, int] | None = None
        if too_long not in ("raise", "skip", "alone"):
            raise wrong_argument("too_long", too_long, "'raise', 'skip' or 'alone'")
        if too_long == "alone" and shapes is not None:
            raise wrong_argument("too_long", too_long, "'raise' or 'skip', with shapes=")
        super().__init__(lengths, window, shapes=shapes, shuffle=shuffle, seed=seed, **dealing)

        if too_long == "raise":
            self._refuse_too_long()

    def _refuse_too_long(self) -> None:
        if not len(self.lengths) or self.lengths.max() <= self.max_tokens:
            return

        key = int(self.lengths.argmax())
        raise UsageError.about(
            "a sample is longer than a batch may be",
            place=f"the sample with key {key}",
            found=f"{self.lengths[key]} tokens",
            expected=f"at most max_tokens={self.max_tokens}",
            fix="raise max_tokens, cut the sample, or choose too_long='skip' or 'alone'",
        )

    def _longest(self) -> int:
        return min(super()._longest(), self.max_tokens)

    def _rows_of(self, row: int) -> int:
        fitting = max(self.max_tokens // row, 1)
        return min(fitting, self.max_samples or fitting)

    def _edges(self, lengths: Lengths) -> list[int]:
        count = len(lengths)
        most = self.max_samples or count
        if self.too_long == "skip":
            edge = int(np.count_nonzero(lengths > self.max_tokens))
        else:
            edge = 0

        edges = [edge]
        while edge < count:
            longest = self._row_of(lengths.item(edge))
            if longest > 0:
                fitting = int(self.max_tokens // longest)
            else:
                fitting = count

            edge = min(edge + min(max(fitting, 1), most), count)
            edges.append(edge)

        return edges

    def _total(self, epoch: int) -> int:
        if self._counted is None or self._counted[0] != epoch:
            batches = 0
            for number in range(self._windows):
                batches += len(self._window(epoch, number))
            self._counted = epoch, batches

        return self._counted[1]

    def _identity(self) -> State:
        limits = {"max_tokens": self.max_tokens, "max_samples": self.max_samples, "too_long": self.too_long}
        return {**super()._identity(), **limits}


def checked_lengths(lengths: npt.ArrayLike | torch.Tensor) -> Lengths:
    """Returns lengths as an array of signed or floating-point numbers, shape (n,). Raises `UsageError` otherwise."""
    array = array_of(lengths, "iuf", _bad_lengths)
    if not array.size:
        return array

    # Also false if one is NaN.
    if not array.min() >= 0:
        first = np.flatnonzero(~(array >= 0))[0]
        raise _bad_lengths(f"{array[first]} at index {first}")
    if array.dtype.kind == "u":
        return array.astype(np.int64)
    return array


def _bad_lengths(found: str) -> UsageError:
    expected = "one non-negative number for each sample, in one dimension"
    fix = "give the length of each sample, in the order of the dataset"
    return UsageError.about("cannot sort by these lengths", place="lengths=", found=found, expected=expected, fix=fix)
