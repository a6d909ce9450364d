"""States of all samplers: exact, small, checked, and of use to any number of ranks."""

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

from headrace.core.errors import StateError
from headrace.samplers import (
    BlockShuffleSampler,
    ClassBalancedSampler,
    DistributedSampler,
    ElasticSampler,
    LengthBucketBatchSampler,
    MaxTokensBatchSampler,
    MixtureSampler,
    WeightedSampler,
)
from tests.samplers.makers import (
    ALONE,
    LABELS,
    LENGTHS,
    MAKERS,
    TOTAL,
    dealt,
    every_sampler,
    every_sampler_of_keys,
    everything,
)


@every_sampler
@given(before=st.integers(1, 4), after=st.integers(1, 4), share=st.floats(0, 1), epoch=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_any_number_of_ranks_goes_on_where_others_stopped(
    make: Any, before: int, after: int, share: float, epoch: int
) -> None:
    alone = everything(make, 1, epoch=epoch)
    steps = int(share * (len(alone) // before))
    states = []
    for rank in range(before):
        sampler = make(rank=rank, world_size=before)
        sampler.set_epoch(epoch)
        assert len(list(islice(sampler, steps))) == steps
        states.append(json.loads(json.dumps(sampler.state_dict())))
    assert states == [states[0]] * before
    resumed = [make(rank=rank, world_size=after, uneven="keep") for rank in range(after)]
    for sampler in resumed:
        sampler.load_state_dict(states[0])
        assert sampler.state_dict() == states[0]
    assert dealt([list(sampler) for sampler in resumed]) == alone[steps * before :]


@every_sampler
def test_a_state_is_exact_after_every_single_element(make: Any) -> None:
    expected, sampler, resumed = everything(make, 1), make(**ALONE), make(**ALONE)
    states = [sampler.state_dict() for _ in sampler]
    assert len({str(state) for state in states}) == len(expected)
    for number in (*range(1, len(states), 29), 255, 256, 257, 767, 768, 769):  # where chunks end, too
        resumed.load_state_dict(states[min(number, len(states)) - 1])
        assert list(islice(resumed, 2)) == expected[number : number + 2]


@every_sampler
def test_states_of_a_resumed_run_are_those_of_one_that_never_stopped(make: Any) -> None:
    straight, stopped = make(**ALONE), make(**ALONE)
    states = [straight.state_dict() for _ in straight]
    list(islice(stopped, 50))
    resumed = make(**ALONE)
    resumed.load_state_dict(stopped.state_dict())
    assert [resumed.state_dict() for _ in resumed] == states[50:]


@every_sampler
@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_when_an_epoch_is_over_all_ranks_are_at_its_end(make: Any, uneven: str) -> None:
    ranks = [make(rank=rank, world_size=3, uneven=uneven) for rank in range(3)]
    for sampler in ranks:
        list(sampler)
    states = [sampler.state_dict() for sampler in ranks]
    assert states == [states[0]] * 3
    other = make(**ALONE)
    other.load_state_dict(states[0])
    assert list(other) == []


@every_sampler_of_keys
@pytest.mark.parametrize("size", [2, 3, 7, 1500])
def test_padding_is_not_counted(make: Any, size: int) -> None:
    sampler = make(rank=size - 1, world_size=size)
    assert len(list(islice(sampler, len(sampler)))) == len(sampler)
    assert sampler.state_dict()["position"] == sampler.total


@every_sampler
def test_a_resumed_iteration_is_resumed_once(make: Any) -> None:
    sampler = make(**ALONE)
    list(islice(sampler, 2))
    again = make(**ALONE)
    again.load_state_dict(sampler.state_dict())
    assert len(list(again)) == len(again) - 2
    assert list(again) == everything(make, 1)


@every_sampler
def test_setting_the_epoch_goes_to_its_beginning(make: Any) -> None:
    sampler = make(**ALONE)
    beginning = sampler.state_dict()
    list(islice(sampler, 5))
    sampler.load_state_dict(sampler.state_dict())
    sampler.set_epoch(0)
    assert sampler.state_dict() == beginning
    assert list(sampler) == everything(make, 1)


@every_sampler
def test_the_state_is_that_of_the_iteration_that_began_last(make: Any) -> None:
    sampler = make(**ALONE)
    older, newer = iter(sampler), iter(sampler)
    list(islice(older, 20))
    list(islice(newer, 3))
    expected = sampler.state_dict()
    next(older)
    assert sampler.state_dict() == expected


@every_sampler
def test_samplers_can_be_pickled_with_where_they_are(make: Any) -> None:
    sampler = make(rank=1, world_size=2)
    expected = list(sampler)
    assert list(pickle.loads(pickle.dumps(make(rank=1, world_size=2)))) == expected
    list(islice(sampler, 7))
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.state_dict() == sampler.state_dict()


@every_sampler
def test_states_are_small_and_plain(make: Any) -> None:
    sampler = make(**ALONE)
    list(islice(sampler, 3))
    state = sampler.state_dict()
    assert len(json.dumps(state)) < 2048
    assert json.loads(json.dumps(state)) == state


@every_sampler
@pytest.mark.parametrize(
    ("other", "who"),
    [("seed", "state: seed=5; this sampler: seed=6\n"), ("kind", "state: sampler='Sampler'; this sampler: sampler='")],
)
def test_a_state_of_another_sampler_is_refused(make: Any, other: str, who: str) -> None:
    state = {**make(seed=5, **ALONE).state_dict(), **({"sampler": "Sampler"} if other == "kind" else {})}
    with pytest.raises(StateError, match=rf"(?s)another sampler.*place:.*found: +{who}.*expected:.*fix:"):
        make(seed=6 if other == "seed" else 5, **ALONE).load_state_dict(state)


@every_sampler
@pytest.mark.parametrize("state", [None, [], {}, 3])
def test_what_is_no_state_is_refused(make: Any, state: Any) -> None:
    with pytest.raises(StateError, match=r"(?s)another sampler.*place:.*found:.*expected:.*fix:"):
        make(**ALONE).load_state_dict(state)


@every_sampler
def test_a_damaged_state_is_refused_and_changes_nothing(make: Any) -> None:
    sampler = make(**ALONE)
    before = sampler.state_dict()
    for name in [name for name in ("epoch", "position", "batch", "since", "shares", "counts") if name in before]:
        for value in (None, -1, "1"):
            with pytest.raises(StateError, match=r"(?s)damaged.*place:.*found:.*expected:.*fix:"):
                sampler.load_state_dict({**before, "epoch": 1, name: value})
    assert sampler.state_dict() == before


OTHERS: dict[str, ElasticSampler] = {
    "shuffled": DistributedSampler(TOTAL, shuffle=False, **ALONE),
    "blocks": BlockShuffleSampler(TOTAL, 16, window=4, **ALONE),
    "weighted": WeightedSampler(np.arange(1, TOTAL + 1), 1400, **ALONE),
    "weighted, no replacement": WeightedSampler(np.arange(TOTAL), 1200, **ALONE),
    "balanced": ClassBalancedSampler(LABELS[::-1], **ALONE),
    "bucketed": LengthBucketBatchSampler(LENGTHS, 4, window=32, drop_last=True, **ALONE),
    "max tokens": MaxTokensBatchSampler(LENGTHS, 240, window=64, max_samples=9, **ALONE),
    "mixture": MixtureSampler([899, 391, 11], [1, 2, 3], **ALONE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_a_sampler_with_other_arguments_is_refused(name: str) -> None:
    state = MAKERS[name](**ALONE).state_dict()
    with pytest.raises(StateError, match="another sampler"):
        OTHERS[name].load_state_dict(state)


def test_a_state_of_other_data_is_refused() -> None:
    state = WeightedSampler([1, 2, 3], **ALONE).state_dict()
    WeightedSampler(torch.tensor([1, 2, 3]), **ALONE).load_state_dict(state)
    with pytest.raises(StateError, match="digest"):
        WeightedSampler([1, 2, 4], **ALONE).load_state_dict(state)
