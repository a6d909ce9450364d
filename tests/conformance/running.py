"""How the tests run a loader: with which workers, and what they look at."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

FORK = multiprocessing.get_context("fork")

processes_only = pytest.mark.processes_only
"""For tests of what only processes do; they are not run with threads."""

forked_only = pytest.mark.forked_only
"""For tests that need fork: workers see locks, lambdas or registered rules of this process."""

with_and_without_workers = pytest.mark.parametrize("num_workers", [0, 2], ids=["inline", "two_workers"])

WIDTHS = [3, 60_000]

small_and_large = pytest.mark.parametrize("width", WIDTHS, ids=["small", "large"])
"""Of samples: a batch may travel one way if it has few bytes and another way if it has many."""


def forked(num_workers: int) -> dict[str, Any]:
    """Loader arguments for so many workers; forked, whatever the default, as that costs milliseconds."""
    if num_workers == 0:
        return {}
    return {"num_workers": num_workers, "multiprocessing_context": "fork"}


def is_running(pid: int) -> bool:
    """Whether a process of that id exists. One that ended and was not waited for still does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that an exception has passed, and with them of the iterator they hold.

    A worker's exception is raised again by a frame that keeps it in a variable. Left to itself this circle
    would keep the iterator, and its workers, until the next garbage collection.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def failure_of(
    expected: type[BaseException] | tuple[type[BaseException], ...], run: Callable[[], Any]
) -> BaseException:
    """The exception of a type that is expected of `run`, without its traceback."""
    try:
        result = run()
    except expected as error:
        forget_frames(error)
        return error
    pytest.fail(f"{expected} expected, but the result is {result!r}")


def told(error: BaseException) -> str:
    """The text of an exception; that of a worker thread reads as that of a worker process."""
    return str(error).replace("in DataLoader worker thread", "in DataLoader worker process")


def outcomes(iterator: Iterator[Any], error: type[Exception]) -> list[Any]:
    """All batches to the end; in the place of each one that raised `error`, the class of the exception."""
    seen: list[Any] = []
    while True:
        try:
            seen.append(next(iterator))
        except StopIteration as end:
            forget_frames(end)
            return seen
        except error as caught:
            forget_frames(caught)
            seen.append(type(caught))


def numbers(batches: Any) -> list[Any]:
    """Tensors as lists of numbers, for short expectations; what is no tensor stays."""
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]
