"""Finds the samples of a batch that cannot be collated, or not with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeVar

from headrace.faults.classify import is_never_skipped

T = TypeVar("T")

ROUNDS = 8
"""How often a batch is collated anew, with other samples in the place of those that could not be collated."""


def collated(collate: Callable[[], T], settle: Callable[[], bool]) -> T:
    """Returns what `collate` returns. Where it raises, `settle` deals with the samples to blame, and it is tried again.

    settle: tells whether there were any. If not, the exception of `collate` is raised.
    """
    for _ in range(ROUNDS):
        try:
            return collate()
        except Exception as error:
            if is_never_skipped(error) or not settle():
                raise

    return collate()


def odd_ones_out(count: int, collate: Callable[[list[int]], object]) -> dict[int, Exception]:
    """Returns which of the samples 0 .. count-1 do not go with the others, each with the exception that shows it.

    Those that cannot be collated alone; if there are none, those that cannot be collated with one of the majority.
    Empty if that does not explain it: if most samples differ from each other, no single one is to blame.
    """
    alone = _failures(range(count), lambda place: collate([place]))
    if alone:
        return alone

    reference = _of_the_majority(count, collate)
    if reference is None:
        return {}
    return _failures_beside(reference, count, collate)


def _of_the_majority(count: int, collate: Callable[[list[int]], object]) -> int | None:
    """Returns one of the first three samples that goes with most of the others, but not with all; None if none does."""
    for reference in range(min(count, 3)):
        if 0 < len(_failures_beside(reference, count, collate)) < count / 2:
            return reference

    return None


def _failures_beside(reference: int, count: int, collate: Callable[[list[int]], object]) -> dict[int, Exception]:
    """Returns which of the samples 0 .. count-1 cannot be collated with the sample `reference`."""
    others = chain(range(reference), range(reference + 1, count))
    return _failures(others, lambda place: collate([reference, place]))


def _failures(places: Iterable[int], attempt: Callable[[int], object]) -> dict[int, Exception]:
    failures: dict[int, Exception] = {}
    for place in places:
        try:
            attempt(place)
        except Exception as error:  # noqa: BLE001 - what is looked for
            failures[place] = error

    return failures
