"""The datasets of a mixture: how many samples and tokens they have, and what weights mean for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.changing_weights import Unit, in_order, sources_of
from headrace.core.errors import UsageError, wrong_argument
from headrace.samplers.quota import ONE, Ints, shares_of
from headrace.samplers.sampler import length_of
from headrace.samplers.weighted import checked_weights, numbers_of

Floats = npt.NDArray[np.float64]


class SourceCount(NamedTuple):
    """How much of a source comes, or has come.

    Attributes:
        samples: over all ranks.
        repeats: passes through the source; 1.5 is one and a half. 0 for an empty source.
        tokens: `samples` times the mean length; None if `lengths=` was not given.

    Examples:
        >>> sampler = headrace.samplers.MixtureSampler([4, 4], weights=[1, 3], num_samples=8, lengths=[10, 20])
        >>> sampler.forecast()[1]
        SourceCount(samples=6, repeats=1.5, tokens=120.0)
    """

    samples: int
    repeats: float
    tokens: float | None


class Sources:
    """What a mixture knows of its sources.

    Attributes:
        samples: how many each has, int64 [sources].
        names: of the sources; None: they are known by their numbers.
        costs: what a sample of each counts, in the unit of the weights, float64 [sources].
    """

    def __init__(self, sources: Any, lengths: Any, unit: Unit) -> None:
        datasets, self.names = sources_of(sources)
        self.samples: Ints = np.array([length_of(dataset) for dataset in datasets], np.int64)
        self.unit = unit
        self._means = self._means_of(lengths)
        self.costs = np.ones(len(self.samples))
        if unit == "tokens":
            if self._means is None:
                raise UsageError.about(
                    "weights of tokens need the lengths of the samples",
                    place="MixtureSampler(lengths=)",
                    found="unit='tokens' without lengths",
                    expected="for each source an array of the lengths of its samples, or their mean",
                    fix="give lengths=, or unit='samples'",
                )
            self.costs = self._means

    def shares(self, row: npt.ArrayLike | torch.Tensor | Mapping[str, float], place: str = "weights=") -> Ints:
        """Returns the shares of samples that a row of weights asks for. Raises `UsageError` if it does not fit.

        place: where the row comes from, in messages.
        """
        weights = checked_weights(in_order(row, self.names, place=place), "source", place=place)
        count = len(self.samples)
        if len(weights) != count:
            raise self._do_not_fit(place, f"{len(weights)} weights")

        empty = np.flatnonzero((self.samples == 0) & (weights > 0))
        if empty.size:
            raise self._do_not_fit(place, f"a weight for the empty source {self.keys()[empty[0]]}")
        return shares_of(weights / self.costs)

    def weights(self, shares: Ints) -> Floats:
        """Returns the weights, with a sum of 1, that ask for these shares of samples."""
        if self.unit == "samples":
            return shares / ONE

        tokens = shares * self.costs
        weights: Floats = tokens / tokens.sum()
        return weights

    def keys(self) -> Sequence[str | int]:
        """Returns what the sources are called: their names, or their numbers."""
        if self.names is not None:
            return self.names
        return range(len(self.samples))

    def counted(self, counts: Ints) -> dict[str | int, SourceCount]:
        """Returns what so many samples of each source are."""
        result: dict[str | int, SourceCount] = {}
        for number, key in enumerate(self.keys()):
            samples = int(counts[number])
            tokens = None
            if self._means is not None:
                tokens = samples * float(self._means[number])
            result[key] = SourceCount(samples, samples / max(int(self.samples[number]), 1), tokens)

        return result

    def _means_of(self, lengths: Any) -> Floats | None:
        """Returns how many tokens a sample of each source has on average; 1 for an empty source."""
        if lengths is None:
            return None

        rows = in_order(lengths, self.names, "lengths")
        if len(rows) != len(self.samples):
            raise wrong_argument("lengths", lengths, f"{len(self.samples)} entries", found=f"{len(rows)} entries")

        means = np.ones(len(rows))
        for number, row in enumerate(rows):
            if not self.samples[number]:
                continue

            values = numbers_of(row)
            if values.ndim > 1 or (values.ndim == 1 and len(values) != self.samples[number]):
                expected = f"one length for each of the {self.samples[number]} samples, or their mean"
                found = f"shape {values.shape} for source {self.keys()[number]}"
                raise wrong_argument("lengths", row, expected, found=found)

            mean = float(values.mean(dtype=np.float64))
            if not (np.isfinite(mean) and mean > 0 and values.min() >= 0):
                found = f"a mean of {mean} and a minimum of {values.min()} for source {self.keys()[number]}"
                raise wrong_argument("lengths", row, "numbers that are not negative, not all zero", found=found)
            means[number] = mean

        return means

    def _do_not_fit(self, place: str, found: str) -> UsageError:
        expected = f"one for each of the {len(self.samples)} sources, and 0 for empty ones"
        fix = "give as many weights as sources, in the same order"
        return UsageError.about("these weights do not fit", place=place, found=found, expected=expected, fix=fix)
