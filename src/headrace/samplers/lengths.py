"""The lengths of documents, checked in one pass: there may be a thousand million, in a file that is mapped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import UsageError, wrong_argument
from headrace.samplers.sampler import digest_of, positive
from headrace.samplers.weighted import numbers_of

Lengths = npt.ArrayLike | torch.Tensor

TOKENS = "tokens"
"""The name of the budget where there is one."""

AT_ONCE = 1 << 18
"""Lengths that are looked at at a time: what is made of them stays in the cache of a core."""

MOST = 1 << 40
"""Tokens of a document, and of a budget: sums of them are whole numbers of 64 bits."""

DIGESTED = 1 << 20
"""Lengths of which a state keeps a digest: of more, as many are taken at even distances."""


@dataclass(frozen=True)
class Column:
    """The lengths of all documents by one budget."""

    name: str
    most: int
    """The budget."""
    lengths: npt.NDArray[Any]
    """Whole numbers, not negative, shape (documents,)."""
    longest: int
    """The number of the longest document; 0 if there is none."""
    too_long: int
    """How many documents are longer than the budget."""
    mean: float
    """Of the lengths, each at most the budget; 0 if there is none."""


def digest_of_lengths(lengths: npt.NDArray[Any]) -> int:
    """Returns a number by which a state tells these lengths from others."""
    step = -(-len(lengths) // DIGESTED) or 1
    return digest_of(lengths[::step])


def checked_budgets(budget: int | Mapping[str, int]) -> dict[str, int]:
    """Returns budgets by name. Raises `UsageError` if one is not a whole number above 0."""
    if not isinstance(budget, Mapping):
        budget = {TOKENS: budget}
    if not budget:
        raise wrong_argument("budget", budget, "a number, or at least one by name")
    budgets = {str(name): positive("budget", most) for name, most in budget.items()}
    for name, most in budgets.items():
        if most > MOST:
            raise wrong_argument("budget", most, f"at most {MOST:,}", found=f"{most:,} {name}")
    # The first one is that of the rows.
    if TOKENS in budgets:
        budgets = {TOKENS: budgets[TOKENS], **budgets}
    return budgets


def columns_of(lengths: Lengths | Mapping[str, Lengths], budgets: Mapping[str, int]) -> list[Column]:
    """Returns the lengths for each budget. Raises `UsageError` if some are missing, or are no lengths."""
    if isinstance(lengths, Mapping):
        by_name = dict(lengths)
    else:
        by_name = {next(iter(budgets)): lengths}
    if set(by_name) != set(budgets):
        expected = f"lengths for {', '.join(map(repr, budgets))}"
        found = f"lengths for {', '.join(map(repr, by_name)) or 'nothing'}"
        raise wrong_argument("lengths", lengths, expected, found=found)

    columns = []
    for name, most in budgets.items():
        array = array_of(by_name[name], "iu", functools.partial(_bad_lengths, name))
        columns.append(_looked_through(name, most, array))
    if len({len(column.lengths) for column in columns}) > 1:
        found = ", ".join(f"{len(column.lengths):,} of {column.name!r}" for column in columns)
        raise wrong_argument("lengths", found, "as many of each")
    return columns


def array_of(lengths: Any, kinds: str, bad: Callable[[str], UsageError]) -> npt.NDArray[Any]:
    """Returns lengths as an array, shape (n,); not a copy if it need not be. Raises what `bad` returns.

    kinds: of numbers that will do, as `dtype.kind` calls them. bad: makes the error for what was found.
    """
    try:
        array = numbers_of(lengths)
    except (TypeError, ValueError) as error:
        raise bad(f"{type(lengths).__name__}: {error}") from error

    if array.ndim == 1 and not array.size:
        return array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise bad(f"{array.dtype} of shape {array.shape}")
    return array


def _looked_through(name: str, most: int, lengths: npt.NDArray[Any]) -> Column:
    longest = too_long = total = 0
    for begin in range(0, len(lengths), AT_ONCE):
        some = lengths[begin : begin + AT_ONCE]
        if some.min() < 0:
            raise _bad_lengths(name, f"{some.min()} at index {begin + int(some.argmin())}")
        if some.max() > MOST:
            raise _bad_lengths(name, f"{some.max():,} at index {begin + int(some.argmax())}")
        if some.max() > lengths[longest]:
            longest = begin + int(some.argmax())
        if some.max() > most:
            too_long += int(np.count_nonzero(some > most))
            some = np.minimum(some, most)
        total += int(some.sum(dtype=np.int64))
    return Column(name, most, lengths, longest, too_long, total / max(len(lengths), 1))


def _bad_lengths(name: str, found: str) -> UsageError:
    expected = "one whole number that is not negative for each document, in one dimension"
    fix = "give the length of each document, in the order of the dataset"
    place = f"lengths of {name!r}"
    return UsageError.about("cannot pack by these lengths", place=place, found=found, expected=expected, fix=fix)
