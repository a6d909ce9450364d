"""`batches_per_epoch=`: epochs of a chosen length over data that are shorter, longer or endless."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import headrace
from headrace.core.errors import UsageError


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


def flat(loader: Any) -> list[int]:
    return list(chain.from_iterable(batch.tolist() for batch in loader))


CREWS = [(0, "process"), (2, "process"), (2, "thread")]


@pytest.mark.parametrize("resources", CREWS)
def test_the_next_epoch_goes_on_where_the_last_one_stopped(resources: Any) -> None:
    loader = headrace.DataLoader(range(10), 2, num_workers=resources[0], backend=resources[1], batches_per_epoch=3)  # type: ignore[arg-type, var-annotated]
    assert len(loader) == 3
    assert [flat(loader) for _ in range(4)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 0, 1],
        [2, 3, 4, 5, 6, 7],
        [8, 9, 0, 1, 2, 3],
    ]


@pytest.mark.parametrize("resources", CREWS)
def test_an_endless_stream_has_epochs(resources: Any) -> None:
    loader = headrace.DataLoader(
        Endless(), 2, num_workers=resources[0], backend=resources[1], batches_per_epoch=2, shard="auto"
    )
    assert [flat(loader) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
@pytest.mark.parametrize("resources", CREWS)
def test_a_state_goes_on_within_the_epoch(resources: Any, stop: int) -> None:
    def made() -> Any:
        return headrace.DataLoader(
            list(range(14)),
            2,
            shuffle=True,
            seed=1,
            num_workers=resources[0],
            backend=resources[1],
            batches_per_epoch=4,
        )

    loader = made()
    flat(loader)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    rest = flat(iterator)
    following = flat(loader)
    resumed = made()
    resumed.load_state_dict(state)
    if rest:  # else the state is the beginning of the next epoch
        assert flat(resumed) == rest
    assert flat(resumed) == following


def test_no_data_are_an_empty_epoch() -> None:
    assert list(headrace.DataLoader([], batches_per_epoch=3)) == []  # type: ignore[arg-type, var-annotated]


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, 10**30])
def test_it_is_a_positive_whole_number(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a positive whole number"):
        headrace.DataLoader([1], batches_per_epoch=wrong)  # type: ignore[arg-type]
