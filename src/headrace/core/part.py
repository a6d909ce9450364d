"""Which part of a stream is ours: the place of the running worker among all workers of all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

from torch.utils.data import get_worker_info

from headrace.core.errors import UsageError, explain
from headrace.core.world import World, current_world

T = TypeVar("T")


class Part(NamedTuple):
    """Part `number` of so many equal `parts`, counted from 0."""

    number: int
    parts: int


class _Place(threading.local):
    world: World | None = None
    part: Part | None = None
    claimed: bool = False
    counted: bool = False


_place = _Place()


def enter_part(world: World, worker: int, workers: int) -> None:
    """Tells the running thread its place: the rank it works for, and which of the rank's workers it is."""
    _place.world = world
    _place.part = Part(worker * world.size + world.rank, workers * world.size)
    _place.claimed = _place.counted = False


@contextlib.contextmanager
def part_kept() -> Iterator[None]:
    """Leaves the place of the running thread as it was."""
    before = dict(vars(_place))
    try:
        yield
    finally:
        vars(_place).clear()
        vars(_place).update(before)


def part_was_claimed() -> bool:
    """True if `shard` was called in this thread since `enter_part`: the data set splits itself."""
    return _place.claimed


def workers_were_counted() -> bool:
    """True if the data set asked how many workers there are since `enter_part`, which splitting itself takes."""
    return _place.counted


def note_counting() -> None:
    """Records that the running data set asked how many workers there are."""
    _place.counted = True


def current_part() -> Part:
    """Returns the part of the running worker among the workers of all ranks."""
    if _place.part is not None:
        return _place.part
    world, info = current_world(), get_worker_info()
    if info is None:
        return Part(world.rank, world.size)
    return Part(info.id * world.size + world.rank, info.num_workers * world.size)


def shard(items: Iterable[T], by: Literal["interleave", "block"] = "interleave") -> Iterator[T]:
    """Yields the items that belong to the running worker, out of all workers of all ranks: each item to exactly one.

    Use it in the `__iter__` of an iterable data set: on a list of files, and each file is read by one worker; or on the
    samples, and each worker reads all of them and keeps its part. Outside of a worker it splits over the ranks alone.
    Every worker must see the same items in the same order.

    `by="interleave"` deals the items out in turn. `by="block"` gives each worker a run of neighbours, whose lengths
    differ by at most one; it needs a sequence. Raises `UsageError` for anything else.
    """
    part = current_part()
    _place.claimed = True
    if by == "interleave":
        return islice(items, part.number, None, part.parts)
    if by == "block" and isinstance(items, Sequence):
        start, stop = (len(items) * edge // part.parts for edge in (part.number, part.number + 1))
        return islice(items, start, stop)
    message = explain(
        "cannot split these items",
        place="headrace.shard",
        found=f"by={by!r} and items of type {type(items).__name__}",
        expected="by='interleave', or by='block' and a sequence (its length must be known)",
        cure="use by='interleave', or make a list of the items",
    )
    raise UsageError(message)
