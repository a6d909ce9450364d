"""`shard=headrace.Shard(rank, world)`: ranks of one model replica get the same batches, replicas different ones."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import headrace
from headrace.core.errors import RanksDifferError, StateError, UsageError
from headrace.core.world import World
from headrace.loader.rank_check import RankWatch
from headrace.samplers import DistributedSampler

from .test_ranks_differ import Store

LENGTH = 48
OnRank = Callable[[int, int], None]


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))

    def __len__(self) -> int:
        return LENGTH


class Parts(Numbers):
    """Splits itself."""

    def __iter__(self) -> Iterator[int]:
        return headrace.shard(range(LENGTH))


DATA: dict[str, Callable[[], Any]] = {"map": lambda: torch.arange(LENGTH), "stream": Numbers, "parts": Parts}


def make(data: str, shard: Any, **more: Any) -> headrace.DataLoader[Any]:
    settings: dict[str, Any] = {"batch_size": 3, "seed": 7, **more}
    if data == "map":
        settings.setdefault("shuffle", True)
    return headrace.DataLoader(DATA[data](), shard=shard, **settings)


def lists(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", DATA)
def test_a_shard_is_the_rank_and_the_world_whatever_the_launcher_says(data: str, workers: int, on_rank: OnRank) -> None:
    for replica in range(4):
        on_rank(replica, 4)
        expected = make(data, "auto", num_workers=workers)
        batches = lists(expected)
        length = len(expected)
        state = expected.state_dict()
        for rank in (2 * replica, 2 * replica + 1):
            on_rank(rank, 8)
            loader = make(data, headrace.Shard(replica, 4), num_workers=workers)
            assert len(loader) == length
            assert lists(loader) == batches
            assert loader.state_dict() == state


@pytest.mark.parametrize("data", ["map", "stream"])
def test_one_replica_over_all_ranks_gets_the_whole_data(data: str, on_rank: OnRank) -> None:
    on_rank(0, 1)
    whole = lists(make(data, "auto"))
    for rank in range(3):
        on_rank(rank, 3)
        assert lists(make(data, headrace.Shard(0, 1))) == whole


@pytest.mark.filterwarnings("ignore:.*cannot say where it was")
@pytest.mark.parametrize("data", ["map", "stream"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1)])
def test_a_run_goes_on_with_another_number_of_replicas(data: str, before: int, after: int) -> None:
    whole = [number for batch in lists(make(data, headrace.Shard(0, 1), batch_size=12)) for number in batch]
    states = []
    for replica in range(before):
        for _ in range(2):  # two ranks of each replica
            loader = make(data, headrace.Shard(replica, before), batch_size=12 // before)
            assert len(list(islice(loader, 2))) == 2
            states.append(loader.state_dict())

    merged = headrace.merge_states(states)
    rests = []
    for replica in range(after):
        loader = make(data, headrace.Shard(replica, after), batch_size=12 // after)
        loader.load_state_dict(merged)
        assert (loader.state_dict()["rank"], loader.state_dict()["world_size"]) == (replica, after)
        rests.append(lists(loader))

    together = [list(zip(*step, strict=True)) for step in zip(*rests, strict=True)]
    assert [number for step in together for place in step for number in place] == whole[24:]


def test_states_that_were_loaded_and_not_gone_on_with_can_be_merged_again() -> None:
    loader = make("map", headrace.Shard(0, 1), batch_size=12)
    next(iter(loader))
    state = loader.state_dict()
    resumed = []
    for replica in range(3):
        one = make("map", headrace.Shard(replica, 3), batch_size=4)
        one.load_state_dict(state)
        resumed.append(one.state_dict())
    back = make("map", headrace.Shard(0, 1), batch_size=12)
    back.load_state_dict(headrace.merge_states(resumed))
    assert lists(back) == lists(make("map", headrace.Shard(0, 1), batch_size=12))[1:]


def test_ranks_of_a_replica_with_different_states_cannot_be_merged() -> None:
    states = []
    for stop in (1, 2):
        loader = make("map", headrace.Shard(0, 1))
        assert len(list(islice(loader, stop))) == stop
        states.append(loader.state_dict())
    with pytest.raises(StateError, match=r"ranks \[0, 0\]"):
        headrace.merge_states(states)


def test_a_framework_can_build_the_loader_anew_from_its_attributes() -> None:
    shard = headrace.Shard(1, 3)
    loader = make("map", shard)
    assert loader.shard is shard
    anew = headrace.DataLoader(loader.dataset, loader.batch_size, sampler=loader.sampler, shard=loader.shard, seed=7)
    assert lists(anew) == lists(loader)
    batches = headrace.DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, shard=loader.shard, seed=7)
    assert lists(batches) == lists(make("map", shard))
    assert lists(pickle.loads(pickle.dumps(loader))) == lists(copy.copy(anew))


def test_a_sampler_of_headrace_splits_by_the_shard() -> None:
    sampler = DistributedSampler(LENGTH, seed=7)
    loader = headrace.DataLoader(torch.arange(LENGTH), 3, sampler=sampler, shard=headrace.Shard(1, 4), seed=7)
    assert lists(loader) == lists(make("map", headrace.Shard(1, 4)))


def test_a_sampler_that_splits_otherwise_is_refused() -> None:
    sampler = DistributedSampler(LENGTH, rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"(?s)split the data differently.*rank=0, world_size=2.*rank=1, world_size=4"):
        headrace.DataLoader(torch.arange(LENGTH), sampler=sampler, shard=headrace.Shard(1, 4))
    assert sampler.world == World(0, 2)


def test_without_a_seed_a_shard_implies_seed_0() -> None:
    assert make("map", headrace.Shard(0, 2), seed=None).seed == 0


@pytest.mark.parametrize(
    ("rank", "world", "found"),
    [(2, 2, "rank=2, world=2"), (-1, 2, "rank=-1, world=2"), (0, 0, "world=0"), ("0", 2, "'0'"), (True, 2, "True")],
)
def test_a_shard_that_cannot_be_is_refused(rank: Any, world: Any, found: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)headrace\.Shard.*found:.*expected:") as caught:
        headrace.Shard(rank, world)
    assert found in str(caught.value)


@pytest.mark.parametrize("shard", [(0, 2), 2, "none", World(0, 2)])
def test_what_is_no_shard_is_refused(shard: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)shard=.*'auto', a headrace\.Shard, or None"):
        headrace.DataLoader([1, 2], shard=shard)


def watch(store: Store, rank: int, replica: dict[str, Any], *, counts: bool = True) -> RankWatch:
    return RankWatch(store, "a/0", World(rank, 4), strict=True, counts=counts, replica=replica)  # type: ignore[arg-type]


def replica(rank: int, world: int = 2, **more: Any) -> dict[str, Any]:
    return {"world": world, "rank": rank, "seed": 0, "batch_size": 4, **more}


def test_ranks_whose_shards_belong_together_are_left_alone() -> None:
    store = Store()
    watches = [watch(store, rank, replica(rank // 2)) for rank in range(4)]
    for one in watches:
        one.begin(5)
    for one in watches:
        one.delivers(1)
        one.delivers(2)
        one.ends(5)


def test_ranks_that_count_other_numbers_of_replicas_are_told() -> None:
    store = Store()
    watch(store, 0, replica(0)).begin(5)
    with pytest.raises(RanksDifferError, match=r"(?s)shards of the ranks.*world: 4 on rank 3, 2 on rank 0"):
        watch(store, 3, replica(3, world=4)).begin(5)


@pytest.mark.parametrize("counts", [True, False])
def test_ranks_of_one_replica_with_other_arguments_are_told(counts: bool) -> None:
    store = Store()
    first = watch(store, 0, replica(0), counts=counts)
    first.begin(None)
    with pytest.raises(RanksDifferError, match=r"(?s)one model replica.*seed: 1 on rank 1, 0 on rank 0"):
        watch(store, 1, replica(0, seed=1), counts=counts).begin(None)
    with pytest.raises(RanksDifferError, match=r"(?s)one model replica.*seed: 0 on rank 0, 1 on rank 1"):
        first.delivers(2)


def test_replicas_with_different_numbers_of_batches_are_told() -> None:
    store = Store()
    watch(store, 0, replica(0)).begin(5)
    with pytest.raises(RanksDifferError, match="rank 0: 5, rank 2: 6"):
        watch(store, 2, replica(1)).begin(6)
