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
        """Returns the data with one more step, done at each access (until `.cache` follows).

        Args:
            function: takes a sample and returns one; see `headrace.step`, as for the others.
            random: whether it draws random numbers.
            batched: whether it takes and returns many samples at once.
            on: the key of the one part of a sample that it takes and returns.
            name: what messages call it.
            version: stands for its code when a cache is checked.

        Returns:
            New data; these stay as they are.

        Raises:
            UsageError: wrong arguments.

        Examples:
            >>> np.save("x.npy", np.arange(3))
            >>> doubled = headrace.open("x.npy").map(lambda value: 2 * value, on="data")
            >>> int(doubled[2]["data"])
            4
        """
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
        """Computes all steps so far, once, and returns the data with them done.

        Args:
            where: a folder on the disk, or `"memory"`: in this process; see `headrace.Staged`, as for the others.
            format: of the data in the folder.
            stale: what to do with a cache of other data or steps: `"error"` or `"rebuild"`.
            freeze_random: compute random steps once all the same.
            on: `"local"`, or `"ray"`: tasks of a Ray cluster compute the samples.

        Returns:
            New data; these stay as they are.

        Raises:
            StaleCacheError: the folder holds a cache of other data or steps.
            UsageError: wrong arguments. `headrace.Staged` lists all other errors.

        Examples:
            >>> np.save("x.npy", np.arange(3))
            >>> kept = headrace.open("x.npy").map(lambda value: 2 * value, on="data").cache("memory")
            >>> kept.cut
            1
        """
        from headrace.data.staged.staged import Staged

        return Staged.of(self).with_cache(where, format=format, stale=stale, freeze_random=freeze_random, on=on)

    def select(self, indices: Sequence[int]) -> Staged:
        """Returns some of the samples, in this order.

        Args:
            indices: whole numbers, 0 .. length-1, also repeated.

        Returns:
            New data; these stay as they are.

        Raises:
            UsageError: other numbers.

        Examples:
            >>> np.save("x.npy", np.arange(6))
            >>> [int(sample["data"]) for sample in headrace.open("x.npy").select([5, 0])]
            [5, 0]
        """
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
        """Returns random parts that do not overlap.

        Args:
            fractions: of the samples, above 0, together at most 1.
            seed: the same seed gives the same parts.

        Returns:
            New data for each fraction; these stay as they are.

        Raises:
            UsageError: other fractions.

        Examples:
            >>> np.save("x.npy", np.arange(10))
            >>> train, test = headrace.open("x.npy").split(0.8, 0.2)
            >>> len(train), len(test)
            (8, 2)
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
