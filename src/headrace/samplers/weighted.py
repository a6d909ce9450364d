"""Samples drawn in proportion to weights, any number of them, over any number of ranks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import uniforms_at
from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.positions import Uneven
from headrace.samplers.sampler import Keys, PositionalSampler, digest_of, positive

Floats = npt.NDArray[np.float64]


class WeightedSampler(PositionalSampler, SplitOverRanks):
    """Draws key i with a probability proportional to `weights[i]`.

    With replacement, a draw of 53 random bits is searched in the cumulative sums in float64. Each probability is exact
    to 2**-53 and the rounding of the sums. Memory: 8 bytes per weight.

    Without replacement, each key gets an exponential variate divided by its weight, and the keys are sorted once per
    epoch (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006). Memory: 8 bytes per weight and 8
    per sample; 40 per weight while an epoch begins. Machines whose logarithms differ in the last bit may swap two keys;
    this becomes likely only with millions of weights.

    Args:
        weights: a one-dimensional array, tensor or sequence of finite numbers, none negative, not all zero. There may
            be any number of them (torch's limit is 2**24). A key of weight 0 is never drawn.
        num_samples: samples of an epoch over all ranks; by default the number of weights.
        replacement: whether a key may be drawn more than once.
        seed: of the order.
        rank: of this process; None: that of `torch.distributed` or the launcher's environment.
        world_size: number of ranks; None: likewise.
        uneven: as in `DistributedSampler`.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> sampler = headrace.samplers.WeightedSampler([0.0, 1.0, 0.0], num_samples=3)
        >>> list(sampler)
        [1, 1, 1]
    """

    def __init__(
        self,
        weights: npt.ArrayLike | torch.Tensor,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        scaled = checked_weights(weights)
        if num_samples is None:
            self.total = len(scaled)
        else:
            self.total = positive("num_samples", num_samples)

        self.replacement = replacement
        self._digest = digest_of(scaled)
        self._drawn: tuple[int, Keys] | None = None
        if replacement:
            self._table = np.cumsum(scaled)
            return

        self._table = scaled
        usable = int(np.count_nonzero(scaled))
        if self.total > usable:
            raise UsageError.about(
                "cannot draw so many samples without replacement",
                place="num_samples=",
                found=self.total,
                expected=f"at most {usable}, the number of weights above zero",
                fix="draw fewer, or with replacement",
            )

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have: the number of weights."""
        return len(self._table)

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        if self.replacement:
            return drawn_by(self._table, uniforms_at(self._stream(0, epoch), positions))

        drawn = self._drawn
        if drawn is None or drawn[0] != epoch:
            drawn = self._drawn = epoch, _first_arrivals(self._table, self.total, self._stream(1, epoch))
        return drawn[1][positions]

    def _identity(self) -> dict[str, Any]:
        more = {"weights": len(self._table), "replacement": self.replacement, "digest": self._digest}
        return {**super()._identity(), **more}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": None}


def drawn_by(sums: Floats, uniforms: Floats) -> Keys:
    """Returns the first index whose cumulative sum is above `uniform * sums[-1]`, for each number in [0, 1).

    That index has a weight above zero, since its sum is above the one before. It exists: numbers of 53 bits are at most
    1 - 2**-53, and so the product is rounded to something below `sums[-1]`.
    """
    # In ascending order, neighbouring searches share their cache lines: three times faster, the sorting included.
    targets = (uniforms * sums[-1]).ravel()
    order = np.argsort(targets)
    keys = np.empty(targets.shape, np.int64)
    keys[order] = np.searchsorted(sums, targets[order], side="right")
    return keys.reshape(uniforms.shape)


def _first_arrivals(weights: Floats, count: int, key: int) -> Keys:
    """Returns the keys of a whole epoch without replacement, shape (count,)."""
    usable = np.flatnonzero(weights)
    uniforms = uniforms_at(key, usable)
    # 0 has no logarithm. The numbers are multiples of 2**-53, so half of that is below all others.
    np.maximum(uniforms, 2.0**-54, out=uniforms)
    # The logarithm of exponential variate / weight: in the same order, and never out of range.
    arrivals = np.log(-np.log(uniforms)) - np.log(weights[usable])
    early = np.flatnonzero(arrivals <= np.partition(arrivals, count - 1)[count - 1])
    first = early[np.argsort(arrivals[early], kind="stable")][:count]
    return usable[first].astype(np.int64, copy=False)


def checked_weights(weights: npt.ArrayLike | torch.Tensor, each: str = "sample", *, place: str = "weights=") -> Floats:
    """Returns weights as new float64, shape (n,), the largest of them 1. Raises `UsageError` if none can be drawn.

    each: what has a weight, in messages. place: where the weights come from, likewise.
    """
    bad = functools.partial(_bad_weights, each, place)
    if weights is None:
        raise bad("None")
    try:
        array = numbers_of(weights).astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise bad(f"{type(weights).__name__}: {error}") from error

    if array.ndim != 1 or array.size == 0:
        raise bad(f"an array of shape {array.shape}")

    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise bad(f"{array[wrong[0]]} at index {wrong[0]}")
    if not array.any():
        raise bad("zeros only")

    # The largest becomes 1, so that no sum overflows. Those that are too small beside it become 0.
    with np.errstate(under="ignore"):
        array /= array.max()

    return array


def numbers_of(values: Any) -> npt.NDArray[Any]:
    """Returns an array of what a tensor on any device, an array or a sequence holds; not a copy if it need not be."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        if values.is_floating_point():
            values = values.double()
        values = values.numpy()
    return np.asarray(values)


def _bad_weights(each: str, place: str, found: str) -> UsageError:
    expected = "a one-dimensional array of finite numbers, none negative, not all zero"
    fix = f"give one weight for each {each}, and 0 to those that are not wanted"
    return UsageError.about("cannot draw with these weights", place=place, found=found, expected=expected, fix=fix)
