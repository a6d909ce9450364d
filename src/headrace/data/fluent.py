"""The words with which a dataset is extended: `.map`, `.cache`, `.select`, `.split`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Subset

from headrace.core.errors import wrong_argument
from headrace.core.protocols import takes_encoded
from headrace.samplers.permutation import Permutation

if TYPE_CHECKING:
    from headrace.data.building.pool import On
    from headrace.data.staged.cache import Stale
    from headrace.data.staged.staged import Staged


class Fluent:
    """What datasets of headrace share. Each word returns a new dataset, and leaves this one as it was."""

    def map(
        self,
        function: Callable[[Any], Any],
        *,
        random: bool | None = None,
        batched: bool = False,
        on: str | int | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> Staged:
        """Returns the data with one more step, done at each access (until `.cache` follows); see `headrace.step`."""
        from headrace.data.staged.staged import Staged
        from headrace.data.staged.steps import as_step

        given = as_step(function, random=random, batched=batched, on=on, name=name, version=version)
        if takes_encoded(function):
            data = self.encoded(on)
        else:
            data = self

        return Staged.of(data).with_step(given)

    def encoded(self, part: str | int | None) -> Any:
        """Returns the data with images in this part of a sample left encoded, for a step that decodes itself.

        The data as they are, where there are no images, or where the user has said how they are decoded.
        """
        return self

    def cache(
        self,
        where: str | os.PathLike[str],
        *,
        format: str = "memmap",
        stale: Stale = "error",
        freeze_random: bool = False,
        on: On = "local",
    ) -> Staged:
        """Computes all steps so far, once, and returns the data with them done; see `headrace.Staged`."""
        from headrace.data.staged.staged import Staged

        return Staged.of(self).with_cache(where, format=format, stale=stale, freeze_random=freeze_random, on=on)

    def select(self, indices: Sequence[int]) -> Staged:
        """Returns some of the samples, in this order. indices: whole numbers, 0 .. length-1, also repeated."""
        from headrace.data.staged.staged import Staged

        chosen = np.asarray(indices)
        length = len(self)  # type: ignore[arg-type]
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            found = f"{chosen.dtype} of shape {chosen.shape}"
            raise wrong_argument("indices", indices, "whole numbers", place="select", found=found)

        chosen = chosen.astype(np.int64)
        if len(chosen) and not (0 <= chosen.min() and chosen.max() < length):
            found = f"{chosen.min()} .. {chosen.max()}"
            expected = f"numbers from 0 to {length - 1}"
            raise wrong_argument("indices", indices, expected, place="select", found=found)

        return Staged(Subset(self, chosen))  # type: ignore[arg-type]

    def split(self, *fractions: float, seed: int = 0) -> tuple[Staged, ...]:
        """Returns random parts that do not overlap: `train, test = data.split(0.9, 0.1)`.

        fractions: of the samples, above 0, together at most 1. The same seed gives the same parts.
        """
        if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
            raise wrong_argument("fractions", fractions, "numbers above 0, together at most 1", place="split")

        length = len(self)  # type: ignore[arg-type]
        if length:
            mixed = Permutation(length, seed).at(np.arange(length, dtype=np.int64))
        else:
            mixed = np.empty(0, np.int64)

        edges = np.rint(np.cumsum([0.0, *fractions]) * length).astype(np.int64)
        parts = []
        for start, stop in itertools.pairwise(edges):
            # In order: neighbours in a file are read together.
            parts.append(self.select(np.sort(mixed[start:stop])))  # type: ignore[arg-type]

        return tuple(parts)
