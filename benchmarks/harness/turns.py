"""Contenders that take turns, so that what else the machine does falls on all of them, and checks of what they bring.

A check that fails ends the program: there are no figures of a loader that delivers something else.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

import numpy as np

Found = TypeVar("Found")

Loop = Callable[[], float | None]
"""Reads what there is, or a part, and then returns the share that this is."""


def in_turn(calls: Mapping[str, Callable[[], Found]], rounds: int, *, untimed: int = 1) -> dict[str, list[Found]]:
    """Calls all in each round, each time another one first. Returns what each returned behind the untimed rounds."""
    names = list(calls)
    found: dict[str, list[Found]] = {name: [] for name in names}
    for turn in range(-untimed, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            value = calls[name]()
            if turn >= 0:
                found[name].append(value)
    return found


def rates_in_turn(loops: Mapping[str, Loop], amount: float, rounds: int) -> dict[str, list[float]]:
    """Returns the rates of each loop in all rounds, in `amount` per second; one untimed round goes before."""
    return in_turn({name: functools.partial(rate_of, loop, amount) for name, loop in loops.items()}, rounds)


def rate_of(loop: Loop, amount: float) -> float:
    """Returns the rate of one loop, in `amount` per second."""
    began = time.perf_counter()
    share = loop() or 1.0
    return amount * share / (time.perf_counter() - began)


def exhaust(loader: Iterable[Any]) -> None:
    """Iterates once, and holds each batch until the next one is there, as training does."""
    for _ in loader:
        pass


def count_batches(loader: Any) -> None:
    """Iterates once, drops each batch at once, and ends the program unless all come."""
    count = 0
    for batch in loader:
        count += 1
        del batch
    if count != len(loader):
        fail(f"{count} batches came instead of {len(loader)}")


def fail(why: str) -> NoReturn:
    """Ends the program."""
    raise SystemExit(why)


def same(found: Any, expected: Any) -> None:
    """Ends the program unless two arrays or tensors have the same values."""
    if not np.array_equal(np.asarray(found), np.asarray(expected)):
        fail("what came differs from its source")


def each_once(keys: Any, count: int) -> None:
    """Ends the program unless the keys are those of `count` samples, each once, in any order."""
    if not np.array_equal(np.sort(np.asarray(keys)), np.arange(count)):
        fail("samples are missing, or came twice")


@contextlib.contextmanager
def beside(function: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Runs a function in a fresh process until the block ends. Yields a connection to the one that it gets."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def passes(loaders: Mapping[str, Iterable[Any]]) -> dict[str, Loop]:
    """Returns what goes through an epoch of each loader."""
    return {name: functools.partial(exhaust, loader) for name, loader in loaders.items()}


def apart(function: Callable[..., Found], *arguments: Any, meanwhile: Callable[[int], None] | None = None) -> Found:
    """Runs a function in a fresh process and returns what it returns.

    meanwhile: called with the process's id, four times a second until it returns.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        while meanwhile is not None and not ours.poll(0.25):
            meanwhile(process.pid or 0)
        found: Found = ours.recv()
    except EOFError:
        fail(f"{function.__name__} failed in its process")
    finally:
        process.join()
    return found


def _answer(answer: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    warnings.simplefilter("ignore", UserWarning)  # more workers than cores: on purpose
    answer.send(function(*arguments))
