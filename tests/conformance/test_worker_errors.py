"""Exceptions and deaths of workers: type, words, and what still comes afterwards."""

import re
from typing import Any

import pytest
import torch

from .datasets import (
    Dying,
    Failing,
    Gated,
    Numbers,
    TwoPart,
    WithMessage,
    exit_at_once,
    kill_self,
)
from .running import (
    FORK,
    failure_of,
    forked,
    forked_only,
    numbers,
    outcomes,
    processes_only,
    small_and_large,
    told,
    with_and_without_workers,
)


@forked_only
@pytest.mark.parametrize(
    "error",
    [ValueError("bad sample"), KeyError("bad sample"), OSError("bad sample"), WithMessage(message="bad sample")],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_of_a_worker_keeps_its_type_and_tells_its_traceback(Loader: Any, error: Exception) -> None:
    loader = Loader(Failing(4, error, at=[0]), **forked(2))
    caught = failure_of(type(error), lambda: list(loader))
    name = type(error).__name__
    lines = told(caught).splitlines()
    assert type(error) is type(caught)
    assert [
        f"Caught {name} in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
    ] == lines[:2]
    assert "in __getitem__" in str(caught)
    assert "raise self.error" in str(caught)
    # Notes on the exception may follow
    assert any(re.fullmatch(rf"(.*\.)?{name}: '?bad sample'?", line) for line in lines)


def test_the_number_of_the_worker_is_told(Loader: Any) -> None:
    loader = Loader(Failing(4, ValueError("bad sample"), at=[1]), **forked(2))
    text = told(failure_of(ValueError, lambda: list(loader)))
    assert text.startswith("Caught ValueError in DataLoader worker process 1.\n")


def test_an_exception_that_takes_several_arguments_becomes_a_runtime_error(Loader: Any) -> None:
    loader = Loader(Failing(4, TwoPart(3, "bad sample"), at=[0]), **forked(2))
    caught = failure_of(RuntimeError, lambda: list(loader))
    assert type(caught) is RuntimeError
    assert told(caught).startswith("Caught TwoPart in DataLoader worker process 0.\nOriginal Traceback")
    assert "(3, 'bad sample')" in str(caught)


@forked_only
def test_the_cause_of_an_exception_is_told_too(Loader: Any) -> None:
    error = ValueError("bad sample")
    error.__cause__ = OSError("no such file")
    text = told(failure_of(ValueError, lambda: list(Loader(Failing(4, error, at=[0]), **forked(1)))))
    assert "OSError: no such file" in text
    assert "The above exception was the direct cause of the following exception:" in text


@pytest.mark.parametrize(
    "error", [ValueError("bad sample"), KeyError("bad sample"), TwoPart(3, "bad sample")], ids=repr
)
def test_without_workers_the_exception_itself_is_raised(Loader: Any, error: Exception) -> None:
    loader = Loader(Failing(4, error, at=[0]))
    assert error is failure_of(type(error), lambda: list(loader))


@with_and_without_workers
def test_after_an_exception_the_next_batch_comes(Loader: Any, num_workers: int) -> None:
    dataset = Failing(12, ValueError("bad sample"), at=[2, 7, 11])
    iterator = iter(Loader(dataset, batch_size=2, **forked(num_workers)))
    expected = [[0, 1], ValueError, [4, 5], ValueError, [8, 9], ValueError]
    assert expected == numbers(outcomes(iterator, ValueError))


@with_and_without_workers
def test_an_exception_in_every_batch_still_comes_to_an_end(Loader: Any, num_workers: int) -> None:
    dataset = Failing(10, ValueError("bad sample"), at=range(10))
    iterator = iter(Loader(dataset, batch_size=2, **forked(num_workers)))
    assert [ValueError] * 5 == outcomes(iterator, ValueError)


def test_persistent_workers_survive_an_exception(Loader: Any) -> None:
    dataset = Failing(6, ValueError("bad sample"), at=[2])
    loader = Loader(dataset, batch_size=2, persistent_workers=True, **forked(2))
    epochs = [numbers(outcomes(iter(loader), ValueError)) for _ in range(3)]
    assert epochs == [[[0, 1], ValueError, [4, 5]]] * 3


def test_a_persistent_epoch_that_was_left_at_an_exception_starts_again(Loader: Any) -> None:
    dataset = Failing(8, ValueError("bad sample"), at=[2])
    loader = Loader(dataset, batch_size=2, persistent_workers=True, **forked(2))
    failure_of(ValueError, lambda: list(loader))
    assert numbers(outcomes(iter(loader), ValueError)) == [[0, 1], ValueError, [4, 5], [6, 7]]


@with_and_without_workers
def test_an_exception_of_the_collate_function_is_like_one_of_the_dataset(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(6), batch_size=2, collate_fn=refuse_two, **forked(num_workers))
    assert outcomes(iter(loader), LookupError) == [1, LookupError, 9]


def refuse_two(samples: list[Any]) -> int:
    if 2 in samples:
        raise LookupError("two is refused")
    return int(sum(samples))


@pytest.mark.quick(Loader="headrace", die="kill_self", persistent=False)
@forked_only
@processes_only
@pytest.mark.parametrize("die", [kill_self, exit_at_once])
@pytest.mark.parametrize("persistent", [False, True], ids=["for_one_epoch", "persistent"])
def test_the_death_of_a_worker_is_a_runtime_error(Loader: Any, die: Any, persistent: bool) -> None:
    go = FORK.Event()
    dataset = Dying(8, at=5, go=go, die=die)
    iterator = iter(Loader(dataset, prefetch_factor=1, persistent_workers=persistent, **forked(2)))
    assert numbers(next(iterator) for _ in range(5)) == [[0], [1], [2], [3], [4]]
    go.set()
    caught = failure_of(RuntimeError, lambda: next(iterator))
    assert re.fullmatch(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly", str(caught))


@pytest.mark.thorough
@forked_only
@processes_only
@small_and_large
def test_a_new_epoch_can_follow_the_death_of_a_worker(Loader: Any, width: int) -> None:
    go = FORK.Event()
    dataset = Dying(8, at=5, go=go, die=kill_self)
    loader = Loader(dataset, collate_fn=lambda one: one[0].expand(width), prefetch_factor=1, **forked(2))
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(5)]
    go.set()
    failure_of(RuntimeError, iterator.__next__)
    del iterator
    dataset.at = -1
    kept += loader
    expected = torch.tensor([*range(5), *range(8)])
    assert torch.equal(expected[:, None].expand(13, width), torch.stack(kept))


@forked_only
def test_a_batch_that_takes_too_long_is_a_runtime_error(Loader: Any) -> None:
    gate = FORK.Event()
    iterator = iter(Loader(Gated(4, gate, held=[2]), timeout=1.5, **forked(2)))
    assert numbers([next(iterator), next(iterator)]) == [[0], [1]]
    caught = failure_of(RuntimeError, lambda: next(iterator))
    gate.set()
    assert str(caught) == "DataLoader timed out after 1.5 seconds"


def test_batches_in_time_are_not_touched_by_a_timeout(Loader: Any) -> None:
    assert numbers(Loader(Numbers(4), timeout=30, **forked(2))) == [[0], [1], [2], [3]]
