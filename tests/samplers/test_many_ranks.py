"""A thousand ranks with 64 workers each: every sample comes exactly once an epoch, and their states can be merged."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import headrace
from headrace.batches.fetch_stream import Deal
from headrace.core.sharding import WorkerContext, enter_place, place_kept
from headrace.core.world import World
from headrace.epoch.snapshot import sealed
from headrace.samplers import DistributedSampler
from headrace.samplers.positions import Uneven

RANKS = 1000
WORKERS = 64

# Without shrinking: a thousand ranks are no smaller for it.
few = settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])


def counted(arrays: list[Any], length: int) -> Any:
    """How often each sample comes, int64 [length]."""
    return np.bincount(np.concatenate([np.empty(0, np.int64), *arrays]), minlength=length)


def of_worker(batches: list[Any], worker: int) -> list[Any]:
    """The batches that one of the workers makes."""
    return batches[worker::WORKERS]


@given(
    length=st.integers(0, 300_000),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    uneven=st.sampled_from(["pad", "drop", "keep"]),
)
@example(length=RANKS * WORKERS * 3, epoch=0, shuffle=True, uneven="pad")
@example(length=RANKS * WORKERS + 1, epoch=1, shuffle=True, uneven="keep")
@example(length=RANKS - 1, epoch=0, shuffle=True, uneven="pad")
@few
def test_every_sample_comes_once_an_epoch(length: int, epoch: int, shuffle: bool, uneven: Uneven) -> None:
    arrays = []
    lengths = set()
    for rank in range(RANKS):
        sampler = DistributedSampler(length, shuffle=shuffle, rank=rank, world_size=RANKS, uneven=uneven)
        sampler.set_epoch(epoch)
        batches = [np.array(keys) for keys in sampler.key_arrays(3, drop_last=False)]
        lengths.add(sum(map(len, batches)))
        for worker in range(WORKERS):
            arrays += of_worker(batches, worker)

    counts = counted(arrays, length)
    if uneven == "keep" or length % RANKS == 0:
        assert (counts == 1).all()
    elif uneven == "drop":
        assert counts.max(initial=0) <= 1
        assert (counts == 0).sum() == length % RANKS
    else:
        assert counts.sum() == -(-length // RANKS) * RANKS
        assert length == 0 or (counts >= 1).all()
    assert len(lengths) == 1 or uneven == "keep"


@pytest.mark.thorough
@given(length=st.integers(1, 300_000), share=st.floats(0, 1), after=st.sampled_from([1, 7, 999, 1001]))
@few
def test_every_sample_comes_once_where_the_number_of_ranks_changes(length: int, share: float, after: int) -> None:
    stop = int(share * (length // RANKS))
    arrays = []
    states = []
    for rank in range(RANKS):
        sampler = DistributedSampler(length, rank=rank, world_size=RANKS, uneven="keep")
        arrays.append(np.fromiter(islice(sampler, stop), np.int64))
        states.append(sampler.state_dict())
    assert all(state == states[0] for state in states)

    for rank in range(after):
        sampler = DistributedSampler(length, rank=rank, world_size=after, uneven="keep")
        sampler.load_state_dict(states[0])
        arrays += [np.array(keys) for keys in sampler.key_arrays(100, drop_last=False)]
    assert (counted(arrays, length) == 1).all()


@pytest.mark.thorough
@given(count=st.integers(1, 4), numbers=st.integers(1, 3), first=st.integers(0, 10**12))
@few
def test_every_sample_of_a_stream_that_is_dealt_out_comes_once(count: int, numbers: int, first: int) -> None:
    counts = np.zeros(count * RANKS * WORKERS * numbers, np.int64)
    for rank in range(RANKS):
        for worker in range(WORKERS):
            deal = Deal(WorkerContext(World(rank, RANKS), worker, WORKERS), first)
            for number in range(numbers):
                share = deal.share(number, count)
                assert len(share) == count
                counts[share.start - first : share.stop - first : share.step] += 1
    assert (counts == 1).all()


@pytest.mark.parametrize("by", ["interleave", "block"])
def test_every_item_goes_to_one_worker_of_one_rank(by: Any) -> None:
    items = list(range(150))
    found: list[int] = []
    parts = set()
    with place_kept():
        for rank in range(RANKS):
            for worker in range(WORKERS):
                place = WorkerContext(World(rank, RANKS), worker, WORKERS)
                enter_place(place)
                parts.add(place.part)
                found += headrace.shard(items, by=by)
    assert sorted(found) == items
    assert {part.number for part in parts} == set(range(RANKS * WORKERS))
    assert {part.parts for part in parts} == {RANKS * WORKERS}


@pytest.mark.thorough
def test_the_states_of_all_ranks_are_merged_and_gone_on_with() -> None:
    samples = torch.arange(4 * RANKS)
    states = []
    seen = []
    for rank in range(RANKS):
        loader = headrace.DataLoader(samples, 1, shuffle=True, shard=headrace.Shard(rank, RANKS))
        seen += [int(batch) for batch in islice(loader, 2)]
        states.append(loader.state_dict())

    merged = headrace.merge_states(states)
    for rank in range(4):
        loader = headrace.DataLoader(samples, 1, shuffle=True, shard=headrace.Shard(rank, 4))
        loader.load_state_dict(merged)
        seen += [int(batch) for batch in loader]
    assert sorted(seen) == samples.tolist()


def test_the_states_of_all_workers_of_all_ranks_are_merged() -> None:
    first = headrace.DataLoader(torch.arange(RANKS), 1, shard="auto").state_dict()
    states = []
    for rank in range(RANKS):
        own = [[worker, {"read": worker, "of": rank}] for worker in range(WORKERS)]
        replicas = {"count": WORKERS, "next": 0, "first": 0, "states": own}
        states.append(sealed({**first, "rank": rank, "world_size": RANKS, "replicas": replicas}))

    began = time.perf_counter()
    merged = headrace.merge_states(states[::-1])
    print(f"states of {RANKS} ranks x {WORKERS} workers merged in {time.perf_counter() - began:.2f} s")  # noqa: T201
    assert merged["ranks"] == states
