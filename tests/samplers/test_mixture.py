"""Mixtures: proportions, passes over each source, and weights that change."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import UsageError
from headrace.samplers import MixtureSampler
from tests.samplers.makers import ALONE, dealt


def sources(keys: list[int], lengths: list[int]) -> np.ndarray[Any, Any]:
    return np.searchsorted(np.cumsum(lengths), keys, side="right")


def test_each_run_of_256_follows_the_weights() -> None:
    lengths = [5000, 300, 40]
    keys = list(MixtureSampler(lengths, [5, 3, 2], 256 * 40, **ALONE))
    total = np.zeros(3)
    for start in range(0, len(keys), 256):
        counts = np.bincount(sources(keys[start : start + 256], lengths), minlength=3)
        assert np.abs(counts - 256 * np.asarray([0.5, 0.3, 0.2])).max() < 2
        total += counts
    assert np.abs(total - len(keys) * np.asarray([0.5, 0.3, 0.2])).max() < 2 + np.log2(40) * 2 / 3


def test_a_small_weight_is_not_rounded_away() -> None:
    keys = list(MixtureSampler([10_000, 10], [99_990, 10], 100_000, **ALONE))
    assert sum(key >= 10_000 for key in keys) == pytest.approx(10, abs=2)


def test_keys_are_those_of_concatenated_data_sets() -> None:
    parts = [torch.arange(30), torch.arange(100, 110)]
    data: Any = torch.utils.data.ConcatDataset(parts)  # type: ignore[arg-type]
    values = [int(data[key]) for key in MixtureSampler(parts, [1, 1], 60, **ALONE)]
    assert sum(value >= 100 for value in values) in range(20, 41)
    assert sorted({value for value in values if value >= 100}) == list(range(100, 110))


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4), epochs=st.integers(1, 4), size=st.integers(1, 99))
@settings(max_examples=40, deadline=None)
def test_a_sample_comes_again_only_after_all_others_of_its_source(lengths: list[int], epochs: int, size: int) -> None:
    sampler = MixtureSampler(lengths, np.arange(1, len(lengths) + 1), size, **ALONE)
    seen: list[int] = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen += sampler
    for end, length in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
        keys = [key for key in seen if end - length <= key < end]
        for start in range(0, len(keys), length):
            assert len({*keys[start : start + length]}) == len(keys[start : start + length])


def test_an_epoch_can_be_set_without_those_before_it() -> None:
    first, second = MixtureSampler([100, 40], [3, 1], 77, **ALONE), MixtureSampler([100, 40], [3, 1], 77, **ALONE)
    for epoch in range(4):
        first.set_epoch(epoch)
        list(islice(first, 10))
    second.set_epoch(3)
    assert list(first) == list(second)


def test_without_shuffling_each_source_comes_in_its_order() -> None:
    keys = list(MixtureSampler([10, 300], [1, 1], 100, shuffle=False, **ALONE))
    small, large = [key for key in keys if key < 10], [key for key in keys if key >= 10]
    assert small == [place % 10 for place in range(len(small))]
    assert large == list(range(10, 10 + len(large)))


def test_each_pass_through_a_source_is_shuffled_anew() -> None:
    passes = np.asarray(list(MixtureSampler([100], [1], 1000, **ALONE))).reshape(10, 100)
    assert np.abs(np.corrcoef(passes)[~np.eye(10, dtype=bool)]).max() < 0.4


@pytest.mark.parametrize("before", [0, 1, 100, 256, 257, 300])
def test_new_weights_hold_from_the_next_sample_on(before: int) -> None:
    sampler = MixtureSampler([1000, 1000], [1, 0], 500, **ALONE)
    iterator = iter(sampler)
    assert all(next(iterator) < 1000 for _ in range(before))
    sampler.set_weights([0, 1])
    rest = list(iterator)
    assert len(rest) == 500 - before
    assert all(key >= 1000 for key in rest)
    assert sampler.weights.tolist() == [0, 1]


def test_a_source_goes_on_where_it_was_when_weights_change() -> None:
    sampler = MixtureSampler([1500, 1500], [1, 1], 500, **ALONE)
    keys = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for number, key in enumerate(sampler):
            keys.append(key)
            if number % 41 == 40:
                sampler.set_weights([number % 3 + 1, number % 2])
    assert len(set(keys)) == 1500


def test_setting_the_same_weights_changes_nothing() -> None:
    sampler, expected = MixtureSampler([50, 30], [1, 2], 600, **ALONE), MixtureSampler([50, 30], [1, 2], 600, **ALONE)
    keys = []
    for number, key in enumerate(sampler):
        keys.append(key)
        if number % 7 == 0:
            sampler.set_weights([10, 20])
    assert keys == list(expected)


def run(size: int, changes: dict[int, list[int]], resume: tuple[int, int] | None = None) -> list[int]:
    """What `size` ranks yield that get new weights at some positions; others may go on for them at one."""
    ranks = [MixtureSampler([500, 300], [1, 2], 720, rank=rank, world_size=size) for rank in range(size)]
    keys: list[int] = []
    position = 0
    iterators = [iter(sampler) for sampler in ranks]
    while position < 720:
        if position in changes:
            for sampler in ranks:
                sampler.set_weights(changes[position])
        if resume is not None and position == resume[0]:
            states = [sampler.state_dict() for sampler in ranks]
            assert states == [states[0]] * len(ranks)
            size = resume[1]
            ranks = [MixtureSampler([500, 300], [1, 2], 720, rank=rank, world_size=size) for rank in range(size)]
            for sampler in ranks:
                sampler.load_state_dict(states[0])
            iterators = [iter(sampler) for sampler in ranks]
        keys += [next(iterator) for iterator in iterators]
        position += size
    return keys


@given(
    change=st.integers(0, 59),
    again=st.integers(0, 59),
    stop=st.integers(0, 59),
    before=st.sampled_from([1, 2, 3, 4]),
    after=st.sampled_from([1, 2, 3, 4, 6]),
)
@settings(max_examples=25, deadline=None)
def test_changed_weights_survive_a_resume_on_any_number_of_ranks(
    change: int, again: int, stop: int, before: int, after: int
) -> None:
    changes = {12 * change: [7, 1], 12 * again: [1, 30]}
    assert run(before, changes, (12 * stop, after)) == run(1, changes)


def test_changed_weights_hold_in_the_next_epoch_and_survive_between_epochs() -> None:
    sampler, other = MixtureSampler([900, 900], [1, 1], 300, **ALONE), MixtureSampler([900, 900], [1, 1], 300, **ALONE)
    seen = list(sampler)
    sampler.set_weights([3, 1])
    other.load_state_dict(sampler.state_dict())
    for each in (sampler, other):
        each.set_epoch(1)
    keys = list(sampler)
    assert sum(key < 900 for key in keys) in range(215, 236)
    assert list(other) == keys
    assert len({*seen, *keys}) == 600


def test_all_iterations_follow_new_weights() -> None:
    sampler = MixtureSampler([1000, 1000], [1, 0], 500, **ALONE)
    older, newer = iter(sampler), iter(sampler)
    list(islice(older, 10))
    list(islice(newer, 20))
    sampler.set_weights([0, 1])
    assert min(next(older), next(newer)) >= 1000


def test_padding_repeats_what_came_first() -> None:
    ranks = [MixtureSampler([500, 300], [1, 2], 10, rank=rank, world_size=4) for rank in range(4)]
    keys = dealt([list(sampler) for sampler in ranks])
    assert keys[10:] == keys[:2]


@pytest.mark.parametrize(
    ("lengths", "weights", "found"),
    [
        ([5, 5], [1], "1 weights"),
        ([5, 0], [1, 1], "empty source 1"),
        ([5], [0], "zeros only"),
        ([5], [-1], "-1.0"),
        ([], [], "shape (0,)"),
        ([5, 5], [float("nan"), 1], "nan at index 0"),
        ([5, 5], [-1, 1], "one weight for each source,"),
        ([5, 5], None, "found:    None\n"),
    ],
)
def test_weights_that_do_not_fit_are_refused(lengths: list[int], weights: Any, found: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:    weights=.*found:.*expected:.*fix:") as caught:
        MixtureSampler(lengths, weights)
    assert found in str(caught.value)


def test_refused_weights_change_nothing() -> None:
    sampler = MixtureSampler([5, 0], [1, 0], **ALONE)
    state = sampler.state_dict()
    for weights in ([0, 0], [1, 1], [1]):
        with pytest.raises(UsageError):
            sampler.set_weights(weights)
    assert sampler.state_dict() == state


def test_a_source_without_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="a dataset with a length"):
        MixtureSampler([object()], [1])  # type: ignore[list-item]


def test_a_state_before_the_first_batch_of_a_second_pass_has_it_ask_again() -> None:
    def made() -> Any:
        sampler = MixtureSampler([500, 300], lambda count: [1, 2 + count % 3], 100, window=7, **ALONE)
        return headrace.DataLoader(range(800), batch_size=None, sampler=sampler)  # type: ignore[arg-type]

    loader = made()
    assert len(list(loader)) == 100
    iterator = iter(loader)
    state = loader.state_dict()
    again = made()
    again.load_state_dict(state)
    assert list(again) == list(iterator)


class Failing:
    def weights_at(self, count: int) -> list[float]:
        return [1, 1] if count < 20 else [1, float("nan")]


def test_weights_that_a_function_answers_later_are_refused_with_its_name_and_the_count() -> None:
    def unnamed(count: int) -> dict[str, float]:
        return {"a": 1, "b": 1} if count < 20 else {"a": 1}

    for weights, place in ((Failing(), "Failing.weights_at(20)"), (unnamed, "unnamed(20)")):
        keys = iter(MixtureSampler({"a": 5, "b": 5}, weights, 50, window=10, **ALONE))
        assert len(list(islice(keys, 20))) == 20
        with pytest.raises(UsageError) as caught:
            next(keys)
        assert f"place:    weights={place}\n" in str(caught.value)
