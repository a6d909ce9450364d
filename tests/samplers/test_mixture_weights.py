"""Mixtures whose weights are shares of tokens, follow a schedule, or are asked for; and sources that end."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import StateError, UsageError
from headrace.samplers import MixtureSampler
from tests.samplers.makers import ALONE, dealt

LENGTHS = [500, 300]

some_weights = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)


def of_first(keys: list[int], start: int = 0, stop: int | None = None) -> int:
    return sum(key < LENGTHS[0] for key in keys[start:stop])


# -- tokens ------------------------------------------------------------------------------------------------------------


@given(weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=4), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_tokens_follow_their_weights(weights: list[float], seed: int) -> None:
    draws = np.random.default_rng(seed)
    lengths = [draws.integers(1, 30 * (number + 1), 40) for number in range(len(weights))]
    sampler = MixtureSampler([40] * len(weights), weights, 4000, unit="tokens", lengths=lengths, **ALONE)
    tokens = np.concatenate(lengths)
    keys = np.array(list(sampler))
    got = np.bincount(keys // 40, weights=tokens[keys], minlength=len(weights))
    means = np.array([row.mean() for row in lengths])
    # Three samples from the quota, and what a pass that has begun is off its mean: within 40 samples, less than half.
    allowed = (3 + 20) * np.array([row.max() for row in lengths]) + 3 * means
    wanted = np.array(weights) / sum(weights)
    assert (np.abs(got - wanted * got.sum()) <= allowed + wanted * allowed.sum()).all()


def test_whole_passes_have_exactly_the_tokens_of_the_source() -> None:
    lengths = np.arange(1, 11)
    sampler = MixtureSampler([10, 5], [3, 0], 30, unit="tokens", lengths=[lengths, 7], **ALONE)
    assert sum(int(lengths[key]) for key in sampler) == 3 * lengths.sum()
    assert sampler.stats()[0].tokens == 3 * lengths.sum()


def test_weights_are_told_in_the_unit_that_they_were_given_in() -> None:
    sampler = MixtureSampler([10, 10], [1, 3], unit="tokens", lengths=[2, 10], **ALONE)
    assert sampler.weights == pytest.approx([0.25, 0.75])
    assert of_share(sampler) == pytest.approx(0.5 / (0.5 + 0.3), abs=0.15)


def of_share(sampler: MixtureSampler) -> float:
    keys = list(sampler)
    return sum(key < 10 for key in keys) / len(keys)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        (None, "unit='tokens' without lengths"),
        ([3], "1 entries"),
        ([[1, 2, 3], 4], "shape (3,) for source 0"),
        ([[0, 0], 4], "a mean of 0.0"),
        ([float("nan"), 4], "a mean of nan"),
        ([[5, -1], 4], "a minimum of -1"),
        ({"a": 1, "b": 2}, "lengths for a, b"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: Any, found: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:.*found:.*expected:") as caught:
        MixtureSampler([2, 2], [1, 1], unit="tokens", lengths=lengths)
    assert found in str(caught.value)


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_each_row_holds_from_its_position_on_over_all_epochs() -> None:
    sampler = MixtureSampler(LENGTHS, {700: [1, 1], 0: [1, 0], 300: [0, 1]}, 500, **ALONE)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert of_first(first, 0, 300) == 300
    assert of_first(first, 300) == 0
    assert of_first(second, 0, 200) == 0
    assert of_first(second, 200) == pytest.approx(150, abs=3)
    assert sampler.weights.tolist() == [0.5, 0.5]


def test_a_schedule_of_tokens_counts_by_the_mean_lengths() -> None:
    weights = {0: [1, 0], 1000: [0, 1], 1300: [1, 0]}
    sampler = MixtureSampler(LENGTHS, weights, 200, unit="tokens", lengths=[10, 30], shuffle=False, **ALONE)
    keys = list(sampler)
    assert [key < 500 for key in keys] == [True] * 100 + [False] * 10 + [True] * 90


def test_a_schedule_is_that_of_weights_set_at_its_positions() -> None:
    scheduled = MixtureSampler(LENGTHS, {0: [1, 2], 100: [3, 1], 350: [1, 9]}, 600, **ALONE)
    changed = MixtureSampler(LENGTHS, [1, 2], 600, **ALONE)
    keys = []
    for number, key in enumerate(changed, 1):
        keys.append(key)
        if number == 100:
            changed.set_weights([3, 1])
        if number == 350:
            changed.set_weights([1, 9])
    assert list(scheduled) == keys


def test_set_weights_takes_the_place_of_a_schedule_also_after_a_resume() -> None:
    def made() -> MixtureSampler:
        return MixtureSampler(LENGTHS, {0: [1, 0], 300: [1, 1]}, 600, **ALONE)

    sampler, other = made(), made()
    iterator = iter(sampler)
    head = list(islice(iterator, 100))
    sampler.set_weights([0, 1])
    state = json.loads(json.dumps(sampler.state_dict()))
    rest = list(iterator)
    assert (of_first(head), of_first(rest)) == (100, 0)
    other.load_state_dict(state)
    assert list(other) == rest


def test_a_state_of_plain_weights_goes_on_under_a_schedule() -> None:
    before = MixtureSampler(LENGTHS, [1, 0], 600, **ALONE)
    list(islice(before, 100))
    after = MixtureSampler(LENGTHS, {0: [1, 0], 200: [0, 1]}, 600, **ALONE)
    after.load_state_dict(before.state_dict())
    rest = list(after)
    assert (of_first(rest, 0, 100), of_first(rest, 100)) == (100, 0)


@pytest.mark.parametrize(
    "weights", [{5: [1, 1]}, {}, {0: [1, 1], -3: [1, 1]}, {0: [1, 1], 1.5: [1, 1]}, {0: [1, 1], "a": [1, 1]}]
)
def test_a_schedule_without_a_beginning_is_refused(weights: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:.*weights=.*found:.*expected:"):
        MixtureSampler(LENGTHS, weights)


@pytest.mark.parametrize("row", [[1], [0, 0], [1, -1], [1, float("nan")], ["a", "b"]])
def test_a_row_that_does_not_fit_is_refused_wherever_it_stands(row: Any) -> None:
    for weights in ({0: [1, 1], 9: row}, lambda _: row):
        with pytest.raises(UsageError, match=r"place: +weights="):
            MixtureSampler(LENGTHS, weights)


# -- functions, objects and files --------------------------------------------------------------------------------------


def by_position(position: int) -> list[int]:
    return [1 + position // 100, 3]


class Curriculum:
    def weights_at(self, position: int) -> list[int]:
        return by_position(position)


@pytest.mark.parametrize("weights", [by_position, Curriculum()], ids=["function", "object"])
def test_what_is_asked_at_each_window_is_a_schedule(weights: Any) -> None:
    rows = {start: by_position(start) for start in (*range(0, 700, 100), *range(700, 1400, 100))}
    asked = MixtureSampler(LENGTHS, weights, 700, window=100, **ALONE)
    known = MixtureSampler(LENGTHS, rows, 700, **ALONE)
    for epoch in (0, 1):
        asked.set_epoch(epoch)
        known.set_epoch(epoch)
        assert list(asked) == list(known)


def test_an_epoch_asks_again_from_its_beginning() -> None:
    asked: list[int] = []

    def weights(position: int) -> list[int]:
        asked.append(position)
        return [1, 1]

    sampler = MixtureSampler(LENGTHS, weights, 250, window=100, **ALONE)
    del asked[:]
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    list(sampler)
    assert asked == [0, 100, 200, 0, 100, 200, 250, 350, 450]


def test_tokens_are_what_a_function_gets_where_weights_are_of_tokens() -> None:
    asked: list[int] = []

    def weights(position: int) -> list[int]:
        asked.append(position)
        return [1, 0]

    list(MixtureSampler(LENGTHS, weights, 30, unit="tokens", lengths=[7, 1], window=10, **ALONE))
    assert sorted(set(asked)) == [0, 70, 140]


@given(
    stop=st.integers(0, 49),
    before=st.sampled_from([1, 2, 3, 4]),
    after=st.sampled_from([1, 2, 3, 4, 6]),
    window=st.sampled_from([17, 50, 100, 599]),
)
@settings(max_examples=15, deadline=None)
def test_a_resume_in_mid_window_replays_what_was_answered(stop: int, before: int, after: int, window: int) -> None:
    """What the function answers has changed meanwhile: it holds from the next window on."""
    bias = [0]

    def weights(position: int) -> list[int]:
        return [1 + position % 7, 1 + bias[0]]

    def made(rank: int, size: int) -> MixtureSampler:
        return MixtureSampler(LENGTHS, weights, 600, window=window, rank=rank, world_size=size)

    position = 12 * stop
    changed_from = -(-position // window) * window
    rows = {start: [1 + start % 7, 1 + 8 * (start >= changed_from)] for start in range(0, 600, window)}
    expected = list(MixtureSampler(LENGTHS, rows, 600, **ALONE))

    ranks = [made(rank, before) for rank in range(before)]
    head = dealt([list(islice(sampler, position // before)) for sampler in ranks])
    states = [json.loads(json.dumps(sampler.state_dict())) for sampler in ranks]
    assert states == [states[0]] * before
    bias[0] = 8
    resumed = [made(rank, after) for rank in range(after)]
    for sampler in resumed:
        sampler.load_state_dict(states[0])
    assert head + dealt([list(sampler) for sampler in resumed]) == expected


def test_set_weights_ends_the_asking() -> None:
    sampler = MixtureSampler(LENGTHS, by_position, 500, window=100, **ALONE)
    iterator = iter(sampler)
    list(islice(iterator, 150))
    sampler.set_weights([0, 1])
    resumed = MixtureSampler(LENGTHS, by_position, 500, window=100, **ALONE)
    resumed.load_state_dict(sampler.state_dict())
    rest = list(iterator)
    assert of_first(rest) == 0
    assert list(resumed) == rest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.json"
    path.write_text("[1, 0]")
    return path


def test_a_file_is_read_again_at_each_window(file: Path) -> None:
    sampler = MixtureSampler(LENGTHS, file, 500, window=100, **ALONE)
    iterator = iter(sampler)
    head = list(islice(iterator, 150))
    file.write_text("[0, 1]")
    rest = list(iterator)
    assert (of_first(head), of_first(rest, 0, 50), of_first(rest, 50)) == (150, 50, 0)


def test_a_file_may_name_the_sources(file: Path) -> None:
    file.write_text('{"code": 3, "web": 1}')
    sampler = MixtureSampler({"web": 500, "code": 300}, str(file), **ALONE)
    assert sampler.weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "FileNotFoundError"),
        ("[1, ", "JSONDecodeError"),
        ("[1, 2, 3]", "3 weights"),
        ("[0, 0]", "zeros only"),
        ("[1, NaN]", "nan at index 1"),
        ('{"web": 1}', "weights for web"),
        ("7", "shape ()"),
    ],
)
def test_a_broken_file_is_an_error_at_first_and_a_warning_later(file: Path, content: str | None, found: str) -> None:
    sampler = MixtureSampler(LENGTHS, file, 500, window=100, **ALONE)
    iterator = iter(sampler)
    next(iterator)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(UsageError, match=r"(?s)place:.*weights\.json.*found:.*expected:") as caught:
        MixtureSampler(LENGTHS, file)
    assert found in str(caught.value)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rest = list(islice(iterator, 399))
    assert of_first(rest) == 399  # the weights so far
    assert len(said) == 1
    for part in (str(file), found, "expected:"):
        assert part in str(said[0].message)


def test_each_change_of_a_fault_is_warned_of_once(file: Path) -> None:
    sampler = MixtureSampler(LENGTHS, file, 900, window=100, **ALONE)
    iterator = iter(sampler)
    contents = ["[1, 0]", "[", "[", "[1]", "[0, 1]", "[1]", "[1]", "[1, 1]", "[1, 1]"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for content in contents:
            file.write_text(content)
            list(islice(iterator, 100))
    assert ["JSONDecodeError" in str(one.message) for one in said] == [True, False, False]


def test_ranks_without_a_process_group_are_refused_a_file(file: Path) -> None:
    for weights in (file, Curriculum()):
        sampler = MixtureSampler(LENGTHS, weights, rank=0, world_size=2)
        with pytest.raises(UsageError, match=r"(?s)ranks may get different weights.*init_process_group"):
            next(iter(sampler))


@pytest.mark.parametrize("more", [{}, {"num_workers": 2}, {"seed": 0}], ids=str)
def test_a_loader_resumes_with_the_weights_of_the_window(file: Path, more: dict[str, Any]) -> None:
    def made() -> Any:
        sampler = MixtureSampler(LENGTHS, file, 600, window=96, **ALONE)
        return headrace.DataLoader(range(800), batch_size=8, sampler=sampler, **more)  # type: ignore[arg-type]

    loader = made()
    iterator = iter(loader)
    head = [key for _ in range(8) for key in next(iterator).tolist()]
    state = loader.state_dict()
    file.write_text("[0, 1]")
    again = made()
    again.load_state_dict(state)
    keys = head + [key for batch in again for key in batch.tolist()]
    assert (of_first(keys, 0, 96), of_first(keys, 96)) == (96, 0)


# -- for samplers that plan by windows ---------------------------------------------------------------------------------


def test_a_window_that_was_begun_is_answered_from_the_state() -> None:
    answers = iter([[1, 1], [1, 0], [0, 1], [1, 1]])
    sampler = MixtureSampler(LENGTHS, lambda _: next(answers), 600, **ALONE)
    windows = []
    for start in (0, 300):
        sampler.begin_window(0, start)
        sampler.begin_window(0, start)
        windows.append(sampler.keys_at(0, np.arange(start, start + 300)).tolist())
    assert [of_first(keys) for keys in windows] == [300, 0]

    resumed = MixtureSampler(LENGTHS, lambda _: [1, 1], 600, **ALONE)
    resumed.load_state_dict(sampler.state_at(sampler._noted(0, (400, 1, [0]))))
    resumed.begin_window(0, 300)
    assert resumed.keys_at(0, np.arange(300, 600)).tolist() == windows[1]


def test_weights_set_within_a_window_leave_what_came_before_in_it() -> None:
    sampler = MixtureSampler(LENGTHS, [1, 1], 600, **ALONE)
    iterator = iter(sampler)
    list(islice(iterator, 50))
    sampler.begin_window(0, 0)
    sampler.set_weights([3, 1])
    sampler.begin_window(0, 100)
    before = sampler.keys_at(0, np.arange(100, 600)).tolist()
    list(islice(iterator, 150))
    sampler.set_weights([0, 1])
    after = sampler.keys_at(0, np.arange(100, 600)).tolist()
    assert after[:100] == before[:100]
    assert of_first(after, 100) == 0
    resumed = MixtureSampler(LENGTHS, [1, 1], 600, **ALONE)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.keys_at(0, np.arange(100, 600)).tolist() == after


# -- what one can ask --------------------------------------------------------------------------------------------------


def test_statistics_count_what_has_come() -> None:
    sampler = MixtureSampler({"web": 500, "code": 30}, [1, 3], 400, lengths={"code": 7, "web": 2}, **ALONE)
    keys = list(sampler)
    sampler.set_epoch(1)
    keys += islice(sampler, 123)
    web = sum(key < 500 for key in keys)
    code = len(keys) - web
    assert sampler.stats() == {"web": (web, web / 500, 2 * web), "code": (code, code / 30, 7 * code)}


@pytest.mark.parametrize("weights", [[1, 3], {0: [1, 3], 150: [5, 1], 700: [1, 1]}])
def test_a_forecast_is_what_comes(weights: Any) -> None:
    sampler = MixtureSampler(LENGTHS, weights, 400, **ALONE)
    told = sampler.forecast(epochs=2)
    counts = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        counts += list(sampler)
    assert told[0].samples == of_first(counts)
    assert told == sampler.stats()
    assert told[0].tokens is None


def test_a_forecast_of_no_epoch_is_refused() -> None:
    with pytest.raises(UsageError, match="epochs="):
        MixtureSampler(LENGTHS, [1, 1]).forecast(0)


# -- sources that end --------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 400), min_size=3, max_size=3),
    weights=some_weights,
    later=some_weights,
    change=st.integers(1, 300),
)
@settings(max_examples=40, deadline=None)
def test_drop_gives_each_sample_once(lengths: list[int], weights: list[int], later: list[int], change: int) -> None:
    schedule = {0: weights, change: later}
    sampler = MixtureSampler(lengths, schedule, when_exhausted="drop", **ALONE)
    keys = list(sampler)
    assert len(keys) == len(set(keys)) == sampler.total
    sources = np.searchsorted(np.cumsum(lengths), keys, side="right")
    counts = np.bincount(sources, minlength=3)
    for number in range(3):
        if later[number]:
            assert counts[number] == lengths[number]
        elif not weights[number]:
            assert counts[number] == 0
    assert [one.samples for one in sampler.forecast().values()] == counts.tolist()


def test_the_share_of_a_dropped_source_goes_to_the_others() -> None:
    sampler = MixtureSampler([100, 3000, 3000], [2, 1, 3], when_exhausted="drop", **ALONE)
    sources = np.searchsorted([100, 3100], list(sampler), side="right")
    through = int(np.flatnonzero(sources == 0)[-1]) + 1
    assert through == pytest.approx(300, abs=8)
    shares = np.bincount(sources[through : through + 2560], minlength=3) / 2560
    assert shares == pytest.approx([0, 0.25, 0.75], abs=0.005)


@given(lengths=st.lists(st.integers(1, 400), min_size=3, max_size=3), weights=some_weights, epoch=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_stop_ends_with_the_last_sample_of_one_source(lengths: list[int], weights: list[int], epoch: int) -> None:
    sampler = MixtureSampler(lengths, weights, when_exhausted="stop", **ALONE)
    sampler.set_epoch(epoch)
    keys = list(sampler)
    counts = np.bincount(np.searchsorted(np.cumsum(lengths), keys, side="right"), minlength=3)
    through = counts >= lengths
    assert through.sum() == 1
    assert counts[through] == np.array(lengths)[through]
    assert through[np.searchsorted(np.cumsum(lengths), keys[-1], side="right")]


def test_a_source_goes_on_in_the_next_epoch_where_another_stopped_this_one() -> None:
    sampler = MixtureSampler([60, 300], [1, 2], when_exhausted="stop", **ALONE)
    keys: list[int] = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        keys += [key for key in sampler if key >= 60]
    assert len(set(keys)) == len(keys) == sampler.stats()[1].samples


def test_an_epoch_ends_after_num_samples_at_the_latest() -> None:
    assert len(MixtureSampler([60, 300], [1, 1], 50, when_exhausted="drop", **ALONE)) == 50
    assert len(MixtureSampler([60, 300], [1, 1], 500, when_exhausted="drop", **ALONE)) == 360


def test_a_state_of_other_weights_is_refused_where_these_end_the_epoch() -> None:
    state = MixtureSampler([60, 300], [1, 1], when_exhausted="drop", **ALONE).state_dict()
    with pytest.raises(StateError, match="weights="):
        MixtureSampler([60, 300], [1, 2], when_exhausted="drop", **ALONE).load_state_dict(state)


def test_weights_must_be_known_where_they_end_the_epoch() -> None:
    with pytest.raises(UsageError, match="known beforehand"):
        MixtureSampler(LENGTHS, by_position, when_exhausted="stop")
    with pytest.raises(UsageError, match="known beforehand"):
        MixtureSampler(LENGTHS, [1, 1], when_exhausted="drop", **ALONE).set_weights([1, 2])


@pytest.mark.parametrize(
    "wrong",
    [{"unit": "bytes"}, {"when_exhausted": "never"}, {"window": 0}, {"unit": None}],
    ids=lambda wrong: str(*wrong.values()),
)
def test_other_words_are_refused(wrong: dict[str, Any]) -> None:
    make: Callable[..., MixtureSampler] = MixtureSampler
    with pytest.raises(UsageError, match=f"place: +{next(iter(wrong))}="):
        make(LENGTHS, [1, 1], **wrong)


@pytest.mark.parametrize("change", [{"earlier": 5}, {"earlier": [5]}, {"window": "a"}, {"earlier": [{"since": 0}]}])
def test_damaged_records_are_refused(change: dict[str, Any]) -> None:
    sampler = MixtureSampler(LENGTHS, by_position, **ALONE)
    with pytest.raises(StateError, match="damaged"):
        sampler.load_state_dict({**sampler.state_dict(), **change})
