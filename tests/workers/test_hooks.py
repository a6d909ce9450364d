"""What training frameworks do to a loader: end its workers, and build it anew from its attributes."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

import headrace
from tests.epoch.datasets import Drawing


def rebuilt(loader: Any, **changed: Any) -> Any:
    """A loader made from the attributes that have the names of the arguments, as Lightning does."""
    names = [name for name in inspect.signature(type(loader).__init__).parameters if name != "self"]
    arguments = {name: getattr(loader, name) for name in names if name not in ("shuffle", *changed)}
    if loader.batch_sampler is not None:
        arguments.pop("batch_sampler")
    return type(loader)(**arguments, **changed)


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_framework_can_end_the_workers_and_begin_again(backend: Any) -> None:
    loader: Any = headrace.DataLoader(Drawing(40), 4, num_workers=2, backend=backend, persistent_workers=True, seed=1)
    first = next(iter(loader))
    kept = loader._iterator
    assert isinstance(kept, _BaseDataLoaderIter)
    assert isinstance(kept, _MultiProcessingDataLoaderIter) == (backend == "process")
    assert len(kept._workers) == 2
    kept._shutdown_workers()
    loader._iterator = None
    assert not any(worker.is_alive() for worker in kept._workers)
    loader.set_epoch(0)
    assert torch.equal(next(iter(loader)), first)


@pytest.mark.parametrize("shard", [None, "auto"])
def test_a_loader_built_from_the_attributes_of_another_delivers_the_same(shard: Any) -> None:
    loader = headrace.DataLoader(Drawing(41), 4, shuffle=True, seed=5, shard=shard, drop_last=True, num_workers=2)
    other = rebuilt(loader)
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in loader]


def test_a_sampler_that_a_framework_puts_in_is_not_dealt_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = headrace.DataLoader(Drawing(8), 2, seed=5, shard="auto")
    sampler = torch.utils.data.DistributedSampler(Drawing(8), num_replicas=2, rank=1, shuffle=False)
    other = rebuilt(loader, sampler=sampler)
    assert torch.cat(list(other))[:, 0].tolist() == [1, 3, 5, 7]


def test_a_subclass_may_wrap_the_iteration() -> None:
    class Shard(headrace.DataLoader[Any]):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch + 100

    loader = Shard(Drawing(6), 2, seed=2, num_workers=1)
    iterator = iter(loader)
    assert next(iterator)[0, 0] == 100
    state = loader.state_dict()
    resumed = Shard(Drawing(6), 2, seed=2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in iterator]


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_copied_loader_is_on_its_own(backend: Any) -> None:
    loader = headrace.DataLoader(Drawing(8), 2, seed=5, num_workers=1, backend=backend)
    iterator = iter(loader)
    next(iterator)
    twin = copy.deepcopy(loader)
    assert len(list(iterator)) == 3
    assert len(list(twin)) == 4
