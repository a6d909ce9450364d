"""Samples drawn in proportion to weights, any number of them, over any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.counter import stream_key, uniforms_at
from headrace.core.errors import UsageError, explain
from headrace.order.positions import Uneven
from headrace.order.sampler import Keys, PositionalSampler, positive


class WeightedSampler(PositionalSampler):
    """Key i is drawn with a probability proportional to `weights[i]`.

    `weights`: a one-dimensional array or sequence of finite numbers, none negative, not all zero; as many as wanted
    (torch's limit of 2**24 does not exist here). `num_samples` per epoch over all ranks; by default one a weight.

    With replacement, a draw is a search in the cumulative sums, which are kept in float64: 8 bytes for each weight.
    Without, keys get exponential variates divided by their weights and are sorted once for each epoch (Efraimidis and
    Spirakis, "Weighted random sampling with a reservoir", 2006): 24 bytes for each weight.
    """

    def __init__(
        self,
        weights: npt.ArrayLike,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        self.weights = checked_weights(weights)
        self.total = len(self.weights) if num_samples is None else positive("num_samples", num_samples)
        self.replacement = replacement
        self._sums = np.cumsum(self.weights) if replacement else None
        self._drawn: tuple[int, Keys] | None = None
        usable = int(np.count_nonzero(self.weights))
        if not replacement and self.total > usable:
            message = explain(
                "cannot draw so many samples without replacement",
                place="num_samples=",
                found=self.total,
                expected=f"at most {usable}, the number of weights above zero",
                cure="draw fewer, or with replacement",
            )
            raise UsageError(message)

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """See `PositionalSampler.keys_at`."""
        key = stream_key(self.seed, epoch)
        if self._sums is not None:
            keys = np.searchsorted(self._sums, uniforms_at(key, positions) * self._sums[-1], side="right")
            last = np.searchsorted(self._sums, self._sums[-1], side="left")  # rounding may end on the very last sum
            return np.asarray(np.minimum(keys, last), np.int64)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._draw(key)
        return self._drawn[1][positions]

    def _draw(self, key: int) -> Keys:
        """Returns the keys of a whole epoch without replacement, shape (total,)."""
        usable = np.flatnonzero(self.weights)
        arrivals = -np.log1p(-uniforms_at(key, usable)) / self.weights[usable]
        first = np.argpartition(arrivals, self.total - 1)[: self.total]
        return np.asarray(usable[first[np.argsort(arrivals[first], kind="stable")]], np.int64)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "weights": len(self.weights), "replacement": self.replacement}


def checked_weights(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns weights as float64, shape (n,). Raises `UsageError` if nothing could be drawn with them."""
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _bad_weights(f"{type(weights).__name__}: {error}") from error
    if array.ndim != 1 or array.size == 0:
        raise _bad_weights(f"an array of shape {array.shape}")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise _bad_weights(f"{array[wrong[0]]} at index {wrong[0]}")
    if not array.any():
        raise _bad_weights("zeros only")
    return array


def _bad_weights(found: str) -> UsageError:
    expected = "a one-dimensional array of finite numbers, none negative, not all zero"
    return UsageError(explain("cannot draw with these weights", place="weights=", found=found, expected=expected))
