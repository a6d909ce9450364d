"""What frameworks look for that split the samples of a loader over the ranks. `tests/clients` has the frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

import headrace
from headrace.core.errors import UsageError
from tests.samplers.makers import BATCHES, MAKERS, TOTAL

DATA = torch.arange(40)


@pytest.mark.parametrize("name", MAKERS)
def test_samplers_are_of_the_class_that_frameworks_leave_alone(name: str) -> None:
    sampler = MAKERS[name](rank=1, world_size=3)
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.num_replicas, sampler.rank) == (3, 1)


def test_an_order_that_is_split_by_nobody_is_left_to_them() -> None:
    assert not isinstance(headrace.DataLoader(DATA, seed=0).sampler, DistributedSampler)
    assert isinstance(headrace.DataLoader(DATA, shard="auto").sampler, DistributedSampler)


def stacked(samples: list[torch.Tensor], packs: Any = None) -> torch.Tensor:
    """The keys of a batch, whichever parts of the samples are in it."""
    return torch.stack(samples)


@pytest.mark.parametrize("name", BATCHES)
def test_batches_that_are_split_are_found_where_frameworks_look(name: str) -> None:
    batch_sampler = MAKERS[name](rank=0, world_size=1)
    loader = headrace.DataLoader(torch.arange(TOTAL), batch_sampler=batch_sampler, collate_fn=stacked)
    assert isinstance(loader.sampler, DistributedSampler)
    assert [batch.tolist() for batch in loader] == [list(batch) for batch in MAKERS[name](rank=0, world_size=1)]


LOST: list[dict[str, Any]] = [
    {"seed": 3},
    {"on_error": "skip"},
    {"backend": "thread"},
    {"batches_per_epoch": 3},
    {"shard": headrace.Shard(0, 2)},
    {"seed": 3, "stragglers": "defer"},
]


@pytest.mark.parametrize("given", LOST, ids=str)
def test_accelerate_is_told_what_a_new_loader_would_lack(given: dict[str, Any]) -> None:
    loader = headrace.DataLoader(DATA, **given)
    with pytest.raises(UsageError, match=r"(?s)Accelerate.*place: +accelerator\.prepare.*fix:") as caught:
        loader._is_accelerate_prepared  # noqa: B018 - Accelerate reads it
    assert all(f"{name}=" in str(caught.value) for name in given)


@pytest.mark.parametrize(
    "given", [{}, {"shuffle": True}, {"shard": "auto"}, {"on_error": headrace.OnError(exclude=[3])}], ids=str
)
def test_accelerate_may_build_a_loader_anew_that_loses_nothing(given: dict[str, Any]) -> None:
    assert headrace.DataLoader(DATA, **given)._is_accelerate_prepared is False


def test_a_stream_that_is_dealt_out_must_not_be_dealt_out_again() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    with pytest.raises(UsageError, match="shard='auto'"):
        headrace.DataLoader(Stream(), shard="auto")._is_accelerate_prepared  # noqa: B018 - Accelerate reads it


class Splitting(headrace.IterableDataset[int]):
    """A stream that gives each rank its part."""

    def __iter__(self) -> Iterator[int]:
        return headrace.shard(range(8))


class OfWorkers(headrace.IterableDataset[int]):
    """A stream that gives each worker its part, and knows of no ranks."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id if info else 0, 8, info.num_workers if info else 1))


@pytest.mark.parametrize("kind", [Splitting, lambda: headrace.PackedStream(Splitting(), 8)], ids=["plain", "held"])
@pytest.mark.quick
def test_accelerate_may_not_split_a_stream_that_has_split_itself(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the samples of two ranks would never come."""
    loader = headrace.DataLoader(kind())
    assert loader._is_accelerate_prepared is False
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="splits itself already"):
        loader._is_accelerate_prepared  # noqa: B018 - Accelerate reads it
    assert headrace.DataLoader(OfWorkers())._is_accelerate_prepared is False


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", MAKERS)
def test_the_number_of_an_epoch_that_is_said_once_more_on_the_way_changes_no_state(name: str, num_workers: int) -> None:
    """Lightning tells samplers the number of the epoch when workers have made its first batches already."""

    def loader() -> Any:
        sampler = MAKERS[name](rank=0, world_size=1)
        given: dict[str, Any] = {"sampler": sampler, "batch_size": 8}
        if name in BATCHES:
            given = {"batch_sampler": sampler, "collate_fn": stacked}
        return headrace.DataLoader(torch.arange(TOTAL), **given, num_workers=num_workers, backend="thread", seed=3)

    whole = [batch.tolist() for batch in loader()]
    interrupted = loader()
    batches = iter(interrupted)
    next(batches)
    (interrupted.batch_sampler if name in BATCHES else interrupted.sampler).set_epoch(0)
    next(batches)
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    assert [batch.tolist() for batch in resumed] == whole[2:]
