"""Fill-in-the-middle: documents rearranged, so that a language model learns to write what is missing between two parts.

Bavarian et al., "Efficient training of language models to fill in the middle", 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SampleError, UsageError
from headrace.core.randomness.rng import rng
from headrace.transforms.entries import as_array, named_entry
from headrace.transforms.random_crops import checked_share
from headrace.transforms.tokenization import checked_token

Row = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class FillInTheMiddle:
    """Cuts the token ids of a document at two random places, and puts the middle part last.

    With probability `rate` a document becomes `prefix` A `suffix` C `middle` B, where A, B, C are its three parts: the
    order PSM. With probability `spm_rate`, it becomes `prefix` `suffix` C `middle` A B instead: the order SPM. Both
    cuts are uniform over all places between tokens, so that parts may be empty.

    A document grows by exactly 3 tokens if it is rearranged, and by none otherwise. Pack, or cut to a length, behind
    this step; a plan that is made beforehand reserves `grows_by` for each document.

    The step takes one sample at a time, a dict or token ids alone, and draws from `headrace.rng()`: with
    `DataLoader(seed=)` results depend on seed, epoch and position only. Put it behind the cache point.

    Attributes:
        prefix: the token id in front of the part before the gap.
        middle: the token id in front of what belongs into the gap.
        suffix: the token id in front of the part behind the gap.
        rate: probability that a document is rearranged.
        spm_rate: probability that one that is rearranged has the order SPM.
        column: the entry of a sample that holds token ids, int [n].
        begin: a token id that stays first, where a document begins with it.
        end: a token id that stays last, where a document ends with it; `append` of `Tokenize`.

    Raises:
        UsageError: arguments that cannot be.

    Examples:
        >>> step = headrace.transforms.FillInTheMiddle(1000, 1001, 1002, rate=1.0, end=0)
        >>> ids = step(np.array([5, 6, 7, 8, 0]))
        >>> len(ids), int(ids[0]), int(ids[-1])
        (8, 1000, 0)
    """

    random: ClassVar[bool] = True

    grows_by: ClassVar[int] = 3
    """How many tokens a document grows by at most."""

    prefix: int
    middle: int
    suffix: int
    _: KW_ONLY
    rate: float = 0.5
    spm_rate: float = 0.5
    column: str = "input_ids"
    begin: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        place = "FillInTheMiddle"
        for name in ("prefix", "middle", "suffix"):
            checked_token(name, getattr(self, name), place)
        for name, token in (("begin", self.begin), ("end", self.end)):
            if token is not None:
                checked_token(name, token, place)

        if len({self.prefix, self.middle, self.suffix}) < 3:
            found = f"prefix={self.prefix}, middle={self.middle}, suffix={self.suffix}"
            raise UsageError.about("the parts could not be told apart", place=place, found=found, expected="three ids")

        checked_share("rate", self.rate, place)
        checked_share("spm_rate", self.spm_rate, place)

    def __call__(self, sample: Any) -> Any:
        """Returns the sample, with its token ids rearranged or as they were. Raises `SampleError` for other than token
        ids, and `UsageError` for a sample without the entry."""
        if not isinstance(sample, Mapping):
            return self._drawn(sample)
        return {**sample, self.column: self._drawn(named_entry(sample, self.column, "FillInTheMiddle"))}

    def _drawn(self, value: Any) -> Row:
        ids = as_array(value)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise SampleError.about(
                "no token ids to rearrange",
                place=f"FillInTheMiddle(column={self.column!r})",
                found=f"{type(value).__name__} of {ids.dtype}, shape {list(ids.shape)}",
                expected="the token ids of one document: whole numbers [n]",
                fix="tokenize before this step; leave batched out",
            )

        # Always four numbers, so that the cuts of a document do not depend on the rates.
        chance, order, *places = rng().random(4).tolist()
        if chance >= self.rate:
            return ids
        return self._rearranged(ids, places, spm=order < self.spm_rate)

    def _rearranged(self, ids: Row, places: list[float], *, spm: bool) -> Row:
        """Returns the document in the order PSM or SPM. places: of the cuts, each a share of the document."""
        start = int(self.begin is not None and len(ids) > 0 and ids[0] == self.begin)
        stop = len(ids) - int(self.end is not None and len(ids) > start and ids[-1] == self.end)
        first, last = sorted(start + int(place * (stop - start + 1)) for place in places)
        before = ids[start:first]
        gap = ids[first:last]
        behind = ids[last:stop]
        prefix, middle, suffix = self._marks(ids.dtype)
        if spm:
            parts = [prefix, suffix, behind, middle, before, gap]
        else:
            parts = [prefix, before, suffix, behind, middle, gap]

        return np.concatenate([ids[:start], *parts, ids[stop:]])

    def _marks(self, dtype: np.dtype[Any]) -> tuple[Row, Row, Row]:
        """Returns the three token ids that mark parts, each as an array [1]."""
        largest = max(self.prefix, self.middle, self.suffix)
        if largest > np.iinfo(dtype).max:
            raise UsageError.about(
                "a token id is too large for the ids of a document",
                place=f"FillInTheMiddle(column={self.column!r})",
                found=f"{largest}, in ids of type {dtype}",
                fix="tokenize to a wider type, such as int32",
            )

        return np.array([self.prefix], dtype), np.array([self.middle], dtype), np.array([self.suffix], dtype)
