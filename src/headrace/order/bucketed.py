"""Batches of samples of similar length: so many samples, or so many tokens, in each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.core.counter import stream_key, words_at
from headrace.core.errors import UsageError, explain
from headrace.order.permutation import Permutation
from headrace.order.positions import Uneven, local_range
from headrace.order.sampler import ElasticSampler, Keys, positive


class Batch(list[int]):
    """The keys of a batch; `positions` are the places of the samples in the shuffled order, shape (len(self),)."""

    positions: Keys

    def __init__(self, keys: Keys, positions: Keys) -> None:
        super().__init__(keys.tolist())
        self.positions = positions

    def __reduce__(self) -> Any:
        return Batch, (np.asarray(self, np.int64), self.positions)


class BucketedBatchSampler(ElasticSampler):
    """Cuts the shuffled order into windows, sorts each by length, and cuts it into batches, which come in random order.

    Batches are dealt to the ranks in turn, so `uneven` counts batches. Memory: the lengths, and one window.
    """

    def __init__(self, lengths: npt.ArrayLike, window: int, *, shuffle: bool, **common: Any) -> None:
        super().__init__(**common)
        self.lengths = _checked_lengths(lengths)
        self.window = positive("window", window)
        self.shuffle = shuffle
        self._ends: tuple[int, npt.NDArray[np.int64]] | None = None

    @abstractmethod
    def _cut(self, lengths: npt.NDArray[Any]) -> list[tuple[int, int]]:
        """Returns (start, stop) of each batch, for lengths in descending order."""

    def _batch_ends(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns for each window how many batches there are up to its end."""
        if self._ends is None or self._ends[0] != epoch:
            windows = range(-(-len(self.lengths) // self.window))
            counts = [len(self._cut(self._sorted_window(epoch, number)[1])) for number in windows]
            self._ends = epoch, np.cumsum(counts, dtype=np.int64)
        return self._ends[1]

    def _sorted_window(self, epoch: int, number: int) -> tuple[Keys, npt.NDArray[Any], Keys]:
        """Returns positions, lengths and keys of a window, by descending length."""
        positions = np.arange(number * self.window, min((number + 1) * self.window, len(self.lengths)), dtype=np.int64)
        keys = positions
        if self.shuffle:
            keys = Permutation(len(self.lengths), stream_key(self.seed, epoch, 0)).at(positions)
        order = np.argsort(-self.lengths[keys], kind="stable")
        return positions[order], self.lengths[keys[order]], keys[order]

    def _window_batches(self, epoch: int, number: int) -> list[Batch]:
        positions, lengths, keys = self._sorted_window(epoch, number)
        batches = [Batch(keys[a:b], positions[a:b]) for a, b in self._cut(lengths)]
        if not self.shuffle:
            return batches
        order = np.argsort(words_at(stream_key(self.seed, epoch, 1, number), np.arange(len(batches))), kind="stable")
        return [batches[place] for place in order.tolist()]

    def __iter__(self) -> Iterator[Batch]:
        start, epoch, world = self._begin()["position"], self.epoch, self.world
        ends = self._batch_ends(epoch)
        total = int(ends[-1]) if len(ends) else 0
        now = self._now = {"position": start}
        held, batches = -1, []
        for count, place in enumerate(local_range(start, total, world, self.uneven), 1):
            number = int(np.searchsorted(ends, place % total, side="right"))
            if number != held:
                held, batches = number, self._window_batches(epoch, number)
            now["position"] = min(start + count * world.size, total)
            yield batches[place % total - int(ends[number]) + len(batches)]

    def __len__(self) -> int:
        ends = self._batch_ends(self.epoch)
        return len(local_range(0, int(ends[-1]) if len(ends) else 0, self.world, self.uneven))

    def _identity(self) -> dict[str, Any]:
        return {"total": len(self.lengths), "seed": self.seed, "window": self.window}


class LengthBucketBatchSampler(BucketedBatchSampler):
    """Batches of `batch_size` samples of similar length.

    `lengths`: the length of each sample, non-negative numbers, shape (n,). `window` is how many samples are sorted
    together (a multiple of `batch_size`; by default 64 batches): larger windows pad less and shuffle less. `drop_last`
    leaves out the one batch that is shorter.
    """

    def __init__(  # noqa: PLR0913 - keywords that all samplers share
        self,
        lengths: npt.ArrayLike,
        batch_size: int,
        *,
        window: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        self.batch_size = positive("batch_size", batch_size)
        self.drop_last = drop_last
        window = 64 * batch_size if window is None else -(-positive("window", window) // batch_size) * batch_size
        common = {"seed": seed, "rank": rank, "world_size": world_size, "uneven": uneven}
        super().__init__(lengths, window, shuffle=shuffle, **common)

    def _cut(self, lengths: npt.NDArray[Any]) -> list[tuple[int, int]]:
        size, count = self.batch_size, len(lengths)
        stop = count // size * size if self.drop_last else count
        return [(start, min(start + size, count)) for start in range(0, stop, size)]

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "batch_size": self.batch_size}


class MaxTokensBatchSampler(BucketedBatchSampler):
    """Batches of similar length whose padded size, samples x longest, is at most `max_tokens`.

    `lengths` as in `LengthBucketBatchSampler`; at most `max_samples` in a batch, if that is given. `window` is how many
    samples are sorted together. A sample longer than `max_tokens` is an error, unless `too_long` says to `"skip"` it or
    to put it into a batch `"alone"`. How many batches there are is known once all windows of an epoch were cut, which
    takes some 0.1 s for a million samples, at the beginning of the epoch and on one rank as on many.
    """

    def __init__(  # noqa: PLR0913 - keywords that all samplers share
        self,
        lengths: npt.ArrayLike,
        max_tokens: int,
        *,
        max_samples: int | None = None,
        too_long: Literal["error", "skip", "alone"] = "error",
        window: int = 8192,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        self.max_tokens = positive("max_tokens", max_tokens)
        self.max_samples = None if max_samples is None else positive("max_samples", max_samples)
        self.too_long = too_long
        common = {"seed": seed, "rank": rank, "world_size": world_size, "uneven": uneven}
        super().__init__(lengths, window, shuffle=shuffle, **common)
        if too_long not in ("error", "skip", "alone"):
            expected = "'error', 'skip' or 'alone'"
            raise UsageError(explain("wrong argument", place="too_long=", found=repr(too_long), expected=expected))
        if too_long == "error" and len(self.lengths) and self.lengths.max() > max_tokens:
            key = int(self.lengths.argmax())
            message = explain(
                "a sample is longer than a batch may be",
                place=f"the sample with key {key}",
                found=f"{self.lengths[key]} tokens",
                expected=f"at most max_tokens={max_tokens}",
                cure="raise max_tokens, cut the sample, or choose too_long='skip' or 'alone'",
            )
            raise UsageError(message)

    def _cut(self, lengths: npt.NDArray[Any]) -> list[tuple[int, int]]:
        batches, start, count = [], 0, len(lengths)
        while start < count:
            longest = max(int(lengths[start]), 1)
            size = max(self.max_tokens // longest, 1)
            stop = min(start + min(size, self.max_samples or size), count)
            if longest <= self.max_tokens or self.too_long == "alone":
                batches.append((start, stop))
            start = stop
        return batches

    def _identity(self) -> dict[str, Any]:
        limits = {"max_tokens": self.max_tokens, "max_samples": self.max_samples, "too_long": self.too_long}
        return {**super()._identity(), **limits}


def _checked_lengths(lengths: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(lengths)
    if array.ndim == 1 and array.size == 0:
        return array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not bool((array >= 0).all()):
        found = f"{array.dtype} of shape {array.shape}"
        expected = "one non-negative number for each sample, in one dimension"
        raise UsageError(explain("cannot sort by these lengths", place="lengths=", found=found, expected=expected))
    return array.astype(np.int64) if array.dtype.kind == "u" else array
