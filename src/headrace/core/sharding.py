"""Which part of a stream is ours: the place of the running worker among all workers of all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Literal, NamedTuple, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from headrace.core.errors import UsageError
from headrace.core.splitters import one_rank_reads
from headrace.core.world import ALONE, World, current_world

T = TypeVar("T")


class Part(NamedTuple):
    """Part `number` of so many equal `parts`, counted from 0."""

    number: int
    parts: int


@dataclass
class WorkerContext:
    """Where a worker stands: for which rank it works, and which of the rank's `workers` it is."""

    world: World
    worker: int = 0
    workers: int = 1
    claimed: bool = False
    """Whether its dataset called `shard`: it splits itself."""
    on_claim: Callable[[], None] | None = None
    """Called when `shard` is called for the first time: what was the same in all workers is so no longer."""
    counted: bool = False
    """Whether its dataset asked how many workers there are, which splitting itself takes."""

    @property
    def part(self) -> Part:
        """Which part of the data of all ranks is this worker's."""
        return Part(self.worker * self.world.size + self.world.rank, self.workers * self.world.size)


class _CurrentWorker(threading.local):
    place: WorkerContext | None = None


_current = _CurrentWorker()


def enter_place(place: WorkerContext | None) -> None:
    """Tells the running thread its place."""
    _current.place = place


@contextlib.contextmanager
def place_kept() -> Iterator[None]:
    """Leaves the place of the running thread as it was."""
    before = _current.place
    try:
        yield
    finally:
        _current.place = before


def note_counting() -> None:
    """Records that the running dataset asked how many workers there are."""
    if _current.place is not None:
        _current.place.counted = True


OURS = {"shard", "current_part"}
SPLITTERS = {"get_worker_info", *OURS}
"""Functions that a stream calls to split itself over the workers."""


def splits_itself(stream: object) -> bool:
    """Returns whether an iterable dataset seems to split itself over the workers, by the names in its methods.

    Also if a dataset that it holds does, or one of several. One that leaves it to a function of another place is not
    known to.
    """
    return _any_method(stream, lambda method: _calls(method.__code__, SPLITTERS))


def splits_over_ranks(stream: object) -> bool:
    """Returns whether an iterable dataset, or one that it holds, splits itself over the ranks, too, as `shard` does.

    One that asks torch's `get_worker_info` alone does not: that knows of workers only.
    """
    return _any_method(stream, _calls_shard)


def _calls_shard(method: FunctionType) -> bool:
    if not _calls(method.__code__, OURS):
        return False
    known = method.__globals__
    named = [known.get(name) for name in OURS]
    modules = [value for value in known.values() if isinstance(value, ModuleType) and value.__name__ == "headrace"]
    return shard in named or current_part in named or bool(modules)


def _any_method(stream: object, test: Callable[[FunctionType], bool]) -> bool:
    """Returns whether a method of an iterable dataset passes a test, or one of a dataset that it holds."""
    # By id, since datasets may hold each other in a circle, and need not have a hash.
    seen = {id(stream)}
    waiting = [stream]
    while waiting:
        dataset = waiting.pop()
        methods = [value for base in type(dataset).__mro__ for value in vars(base).values()]
        if any(test(method) for method in methods if isinstance(method, FunctionType)):
            return True

        for attribute in getattr(dataset, "__dict__", {}).values():
            several = attribute if isinstance(attribute, (list, tuple)) else (attribute,)
            for held in several:
                if isinstance(held, IterableDataset) and id(held) not in seen:
                    seen.add(id(held))
                    waiting.append(held)

    return False


def _calls(code: CodeType, names: set[str]) -> bool:
    if not names.isdisjoint(code.co_names + code.co_freevars):
        return True

    # Functions and comprehensions within a function are constants of its code.
    return any(isinstance(constant, CodeType) and _calls(constant, names) for constant in code.co_consts)


def current_part() -> Part:
    """Returns the part of the running worker among the workers of all ranks.

    Among those of this rank, where a framework has it read for all. Raises `UsageError` where one splits once more.
    """
    if _current.place is not None:
        return _current.place.part

    world = current_world()
    if world.size > 1 and one_rank_reads():
        world = ALONE
    info = get_worker_info()
    if info is None:
        return Part(world.rank, world.size)
    return Part(info.id * world.size + world.rank, info.num_workers * world.size)


def shard(items: Iterable[T], by: Literal["interleave", "block"] = "interleave") -> Iterator[T]:
    """Yields the items of the running worker: each item goes to exactly one worker of all ranks.

    Use it in the `__iter__` of an iterable dataset. On a list of files, one worker reads each file. On the samples,
    each worker reads all of them and keeps its part. Outside of a worker it splits over the ranks alone. Every worker
    must see the same items in the same order. With `seed=`, all workers draw the same random numbers before the call,
    so you may shuffle the items first; after the call each worker draws its own.

    Args:
        items: any iterable; for `by="block"` a sequence.
        by: `"interleave"` deals the items out in turn; `"block"` gives each worker a run of neighbours, and the lengths
            of the runs differ by at most one.

    Yields:
        The items themselves, in their order.

    Raises:
        UsageError: other arguments.

    Examples:
        >>> class Lines(headrace.IterableDataset):
        ...     def __iter__(self):
        ...         yield from headrace.shard(["a", "b", "c"])
        >>> list(headrace.DataLoader(Lines(), batch_size=None))
        ['a', 'b', 'c']
    """
    part = current_part()
    place = _current.place
    if place is not None and not place.claimed:
        place.claimed = True
        if place.on_claim is not None:
            place.on_claim()

    if by == "interleave":
        return islice(items, part.number, None, part.parts)
    if by == "block" and isinstance(items, Sequence):
        start = len(items) * part.number // part.parts
        stop = len(items) * (part.number + 1) // part.parts
        return islice(items, start, stop)

    raise UsageError.about(
        "cannot split these items",
        place="headrace.shard",
        found=f"by={by!r} and items of type {type(items).__name__}",
        expected="by='interleave', or by='block' and a sequence (its length must be known)",
        fix="use by='interleave', or make a list of the items",
    )
