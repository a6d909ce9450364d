"""What all samplers share: the same order for any chunking and any number of ranks, and a resume anywhere."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.samplers import (
    BlockShuffleSampler,
    DistributedSampler,
    ElasticSampler,
    MixtureSampler,
    WeightedSampler,
)
from tests.samplers.makers import (
    ALONE,
    MAKERS,
    TOTAL,
    every_sampler,
    every_sampler_of_keys,
    everything,
)


@pytest.mark.thorough
@every_sampler
@given(size=st.integers(1, 7), epoch=st.integers(0, 3))
@settings(max_examples=6, deadline=None)
def test_all_ranks_together_yield_what_one_would(make: Any, size: int, epoch: int) -> None:
    alone = everything(make, 1, epoch=epoch)
    assert everything(make, size, "keep", epoch) == alone
    padded = everything(make, size, "pad", epoch)
    assert padded[: len(alone)] == alone
    assert len(padded) == -(-len(alone) // size) * size
    assert everything(make, size, "drop", epoch) == alone[: len(alone) // size * size]


@every_sampler
@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_the_length_of_a_sampler_is_what_it_yields(make: Any, uneven: str) -> None:
    for rank in range(3):
        sampler = make(rank=rank, world_size=3, uneven=uneven)
        assert len(list(sampler)) == len(sampler)
        next(iter(sampler))
        assert len(list(sampler)) == len(sampler)


@every_sampler
def test_padding_repeats_what_came_first(make: Any) -> None:
    alone = everything(make, 1)
    size = next(size for size in range(2, 9) if len(alone) % size)
    padding = everything(make, size)[len(alone) :]
    assert padding == alone[: len(padding)]


@every_sampler
def test_padding_goes_round_and_round_among_more_ranks_than_there_are_keys(make: Any) -> None:
    sampler = make(**ALONE)
    alone = list(sampler)
    for _ in zip(range(len(alone) - 2), sampler, strict=False):
        pass
    state = sampler.state_dict()  # two are left
    size = 2 * len(alone) + 3
    for rank in (0, 1, 2, len(alone) + 2, size - 1):
        other = make(rank=rank, world_size=size)
        other.load_state_dict(state)
        expected = alone[len(alone) - 2 + rank] if rank < 2 else alone[(rank - 2) % len(alone)]
        assert list(other) == [expected]


@every_sampler
def test_iterating_does_not_change_the_epoch(make: Any) -> None:
    sampler = make(**ALONE)
    assert list(sampler) == list(sampler)
    assert sampler.state_dict()["epoch"] == 0


@every_sampler
def test_epochs_differ_and_come_again(make: Any) -> None:
    assert everything(make, 1, epoch=1) == everything(make, 1, epoch=1)
    if make is not MAKERS["in order"]:
        assert everything(make, 1, epoch=1) != everything(make, 1, epoch=0)


@every_sampler
def test_seeds_give_different_orders(make: Any) -> None:
    if make is not MAKERS["in order"]:
        assert list(make(seed=1, **ALONE)) != list(make(seed=2, **ALONE))


@every_sampler
def test_two_iterations_at_once_do_not_disturb_each_other(make: Any) -> None:
    sampler = make(**ALONE)
    expected = list(sampler)
    assert list(zip(sampler, sampler, strict=True)) == [(element, element) for element in expected]


@every_sampler
def test_an_unknown_word_for_the_uneven_end_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="'pad', 'drop' or 'keep'"):
        make(uneven="wrap", **ALONE)


@every_sampler
def test_an_impossible_rank_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="0 <= rank < world_size"):
        make(rank=2, world_size=2)


@every_sampler_of_keys
def test_keys_do_not_depend_on_how_they_are_asked_for(make: Any) -> None:
    if make is MAKERS["mixture, asked"]:
        return  # its weights are not known beforehand
    sampler = make(**ALONE)
    positions = np.arange(sampler.total)
    for epoch in (0, 2):
        whole = sampler.keys_at(epoch, positions)
        places = np.random.default_rng(epoch).permutation(sampler.total)
        assert sampler.keys_at(epoch, places).tolist() == whole[places].tolist()
        assert [int(sampler.keys_at(epoch, positions[i : i + 1])[0]) for i in range(0, 1000, 37)] == whole[
            :1000:37
        ].tolist()
        sampler.set_epoch(epoch)
        assert list(sampler) == whole.tolist()


@every_sampler_of_keys
def test_keys_are_plain_numbers(make: Any) -> None:
    assert {type(key) for key in make(**ALONE)} == {int}


def test_the_ranks_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = DistributedSampler(6, shuffle=False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(sampler) == [1, 3, 5]


def test_ranks_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "two")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"(?s)RANK='two'.*torchrun"):
        len(DistributedSampler(6))


LARGE: dict[str, ElasticSampler] = {
    "shuffled": DistributedSampler(10**9, **ALONE),
    "blocks": BlockShuffleSampler(10**9, 1000, **ALONE),
    "weighted": WeightedSampler(range(1, 100), 10**9, **ALONE),
    "mixture": MixtureSampler([10**9, 10**10, 10**8], [5, 2, 1], **ALONE),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_thousand_million_samples_start_at_once_from_a_small_state(name: str) -> None:
    sampler: Any = LARGE[name]
    sampler.load_state_dict({**sampler.state_dict(), "position": 765_432_109})
    iterator = iter(sampler)
    first = list(islice(iterator, 2000))
    assert sampler.state_dict()["position"] == 765_434_109
    assert len(json.dumps(sampler.state_dict())) < 2048
    again: Any = pickle.loads(pickle.dumps(sampler))
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert list(islice(again, 10)) == list(islice(iterator, 10))
    assert name == "weighted" or len(set(first)) == 2000


def test_a_data_set_gives_its_length() -> None:
    assert len(DistributedSampler(torch.arange(7), **ALONE)) == len(DistributedSampler(np.int64(7), **ALONE)) == 7


@pytest.mark.parametrize("dataset", [None, -1, 2.5, True])
def test_what_has_no_length_is_refused(dataset: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:.*found:.*expected: a dataset with a length.*fix:"):
        DistributedSampler(dataset)


@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_without_samples_nothing_is_yielded(uneven: Any) -> None:
    for sampler in (DistributedSampler(0, rank=1, world_size=3, uneven=uneven), BlockShuffleSampler(0, 4, **ALONE)):
        assert list(sampler) == []
        assert len(sampler) == 0


@every_sampler
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_of_torch_takes_elastic_samplers(make: Any, num_workers: int) -> None:
    expected = list(make(**ALONE))
    of_batches = isinstance(expected[0], list)
    if num_workers and make not in (MAKERS["shuffled"], MAKERS["bucketed"]):
        return  # processes are slow to start
    if make is MAKERS["packed, split"]:
        return  # it refuses: torch's loader tells nobody where documents are cut
    how = {"batch_sampler": make(**ALONE)} if of_batches else {"batch_size": 10, "sampler": make(**ALONE)}
    loader = torch.utils.data.DataLoader(range(2 * TOTAL), num_workers=num_workers, **how)  # type: ignore[arg-type]
    batches = [batch.tolist() for batch in loader]
    assert batches == (expected if of_batches else [expected[i : i + 10] for i in range(0, len(expected), 10)])
    assert len(loader) == len(batches)


GOLDEN = {
    "shuffled": [1057, 1033, 1262],
    "in order": [150, 151, 152],
    "blocks": [1226, 313, 311],
    "weighted": [810, 925, 523],
    "weighted, no replacement": [1231, 1017, 1142],
    "balanced": [488, 92, 1145],
    "bucketed": [[1053, 1254, 324, 1180], [153, 1098, 310, 1256], [630, 887, 871, 1168]],
    "bucketed, drop last": [[402, 389, 493, 159], [27, 507, 732, 560], [1275, 1201, 733, 855]],
    "max tokens": [
        [269, 1294, 38, 481, 498, 1250, 647, 15, 915, 68],
        [999, 527, 8, 546],
        [1075, 807, 246, 818, 1095, 1090, 101, 793, 77, 509, 260],
    ],
    "max tokens, skip": [[1211], [428], [1000, 299]],
    "packed": [[1245, 887, 442, 25], [1053, 454, 593, 810], [117, 2, 786, 1260]],
    "packed, split": [
        [567, 451, 994, 107, 874, 763, 498, 999, 15],
        [1259, 335, 759, 533, 492, 67, 1239, 927, 11, 917],
        [1034, 387, 102, 466],
    ],
    "mixture": [1295, 984, 1296],
    "mixture, schedule": [767, 508, 1167],
    "mixture, asked": [1290, 1298, 1291],
    "mixture, drop": [225, 8, 868],
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_order_is_the_same_for_ever(name: str) -> None:
    """Saved states depend on it: a change here breaks every resume."""
    sampler = MAKERS[name](seed=7, **ALONE)
    sampler.set_epoch(3)
    list(islice(sampler, 150))
    sampler.load_state_dict(sampler.state_dict())
    assert list(islice(sampler, 3)) == GOLDEN[name]
