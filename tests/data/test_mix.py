"""Mixtures of streams: shares at all times, ends, weights that change, and a state that is exact."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import headrace
from headrace.core.errors import SampleError, StateError, UsageError

some_weights = st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any)


class Numbers(IterableDataset[int]):
    """A generator, which has no state."""

    def __init__(self, start: int, count: int) -> None:
        self.start = start
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from headrace.shard(range(self.start, self.start + self.count))


class Counter(IterableDataset[int]):
    """A dataset whose iterator has a state, and counts what it reads."""

    def __init__(self, start: int, count: int) -> None:
        self.start = start
        self.count = count
        self.read = 0

    def __iter__(self) -> CounterIterator:
        return CounterIterator(self)


class CounterIterator:
    def __init__(self, dataset: Counter) -> None:
        self.dataset = dataset
        self.mine = list(headrace.shard(range(dataset.start, dataset.start + dataset.count)))
        self.at = 0

    def __iter__(self) -> CounterIterator:
        return self

    def __next__(self) -> int:
        if self.at == len(self.mine):
            raise StopIteration
        self.at += 1
        self.dataset.read += 1
        return self.mine[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Cursor(IterableDataset[int]):
    """A dataset that has a state itself."""

    def __init__(self, start: int, count: int) -> None:
        self.start = start
        self.count = count
        self.at = 0
        self.begin = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.begin = self.begin, 0
        for at in range(begin, self.count):
            self.at = at + 1
            yield self.start + at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]
        self.at = state["at"]


class Texts(IterableDataset[dict[str, list[int]]]):
    """Samples of random lengths, without an end."""

    def __init__(self, seed: int, longest: int) -> None:
        self.seed = seed
        self.longest = longest

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        draws = np.random.default_rng(self.seed)
        while True:
            yield {"input_ids": [self.seed] * int(draws.integers(1, self.longest + 1))}


def sources_in(samples: list[int]) -> list[int]:
    return [sample // 1000 for sample in samples]


# -- shares ------------------------------------------------------------------------------------------------------------


@given(weights=some_weights)
@settings(max_examples=40, deadline=None)
def test_every_beginning_has_its_shares_of_samples(weights: list[int]) -> None:
    streams = [Numbers(1000 * number, 1000) for number in range(len(weights))]
    samples = list(islice(headrace.mix(streams, weights), 300))
    counts = np.cumsum(np.eye(len(weights))[sources_in(samples)], axis=0)
    wanted = np.arange(1, 301)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(counts - wanted).max() < 2


@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4))
@settings(max_examples=30, deadline=None)
def test_every_beginning_has_its_shares_of_tokens(weights: list[int]) -> None:
    streams = [Texts(number, 5 + 60 * number) for number in range(len(weights))]
    samples = list(islice(headrace.mix(streams, weights, unit="tokens"), 400))
    tokens = np.zeros((400, len(weights)))
    for row, sample in enumerate(samples):
        tokens[row, sample["input_ids"][0]] = len(sample["input_ids"])
    got = np.cumsum(tokens, axis=0)
    wanted = got.sum(1)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(got - wanted).max() < 2 * (5 + 60 * len(weights))


def test_samples_are_as_long_as_length_says() -> None:
    streams = {"a": Numbers(0, 100), "b": Numbers(1000, 100)}
    mixed = headrace.mix(streams, {"b": 1, "a": 1}, unit="tokens", length=lambda sample: 1 + 8 * (sample < 1000))
    assert sources_in(list(islice(mixed, 100))).count(1) == 90


@pytest.mark.parametrize(
    ("sample", "length", "error", "found"),
    [
        (3, None, SampleError, "a int: object of type 'int'"),
        ({"input_ids": None}, None, SampleError, "a NoneType: object of type 'NoneType'"),
        ([1], lambda sample: len(sample[0]), UsageError, "a list: object of type 'int'"),
        ([1], lambda _: -1, UsageError, "a length of -1"),
        ([1], lambda _: "x", UsageError, "a length of 'x'"),
    ],
)
def test_a_sample_without_a_length_is_an_error(sample: Any, length: Any, error: Any, found: str) -> None:
    mixed = headrace.mix([[sample]], [1], unit="tokens", length=length)
    with pytest.raises(error, match=r"headrace\.mix\(length=\)") as caught:
        next(iter(mixed))
    assert found in str(caught.value)


def test_a_rare_stream_comes_at_another_time_in_each_worker() -> None:
    streams = [Numbers(0, 2000), Numbers(2000, 2000)]
    loader = headrace.DataLoader(headrace.mix(streams, [19, 1]), batch_size=1, num_workers=2)
    samples = [int(batch) for batch in islice(loader, 200)]
    firsts = [next(at for at, sample in enumerate(samples[worker::2]) if sample >= 2000) for worker in (0, 1)]
    assert firsts[0] != firsts[1]
    assert sum(sample >= 2000 for sample in samples) == pytest.approx(10, abs=2)


# -- ends --------------------------------------------------------------------------------------------------------------


def test_stop_ends_with_the_first_stream() -> None:
    mixed = headrace.mix([Numbers(0, 10), Numbers(1000, 40)], [1, 1], when_exhausted="stop")
    samples = list(mixed)
    assert [sample for sample in samples if sample < 1000] == list(range(10))
    assert len(samples) in (20, 21)
    iterator = iter(mixed)
    assert list(iterator) == samples
    assert list(iterator) == []


@given(counts=st.lists(st.integers(0, 30), min_size=2, max_size=4), data=st.data())
@settings(max_examples=40, deadline=None)
def test_drop_gives_each_sample_once(counts: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(counts), max_size=len(counts)))
    streams = [Numbers(1000 * number, count) for number, count in enumerate(counts)]
    expected = [1000 * number + at for number, count in enumerate(counts) for at in range(count)]
    assert sorted(headrace.mix(streams, weights, when_exhausted="drop")) == expected


def test_the_share_of_a_dropped_stream_goes_to_the_others() -> None:
    streams = [Numbers(0, 20), Numbers(1000, 500), Numbers(2000, 500)]
    sources = sources_in(list(headrace.mix(streams, [2, 1, 3], when_exhausted="drop")))
    assert sources[60 : 60 + 400].count(1) == pytest.approx(100, abs=2)


def test_repeat_ends_when_each_stream_has_ended_once() -> None:
    samples = list(headrace.mix([Numbers(0, 10), Numbers(1000, 40), Numbers(2000, 5)], [1, 1, 0]))
    assert {sample for sample in samples if sample >= 1000} == set(range(1000, 1040))
    small = [sample for sample in samples if sample < 1000]
    assert small == [number % 10 for number in range(len(small))]
    assert len(small) in (40, 41)


@pytest.mark.parametrize("when_exhausted", ["repeat", "drop"])
def test_a_stream_that_is_empty_is_left_out(when_exhausted: Any) -> None:
    mixed = headrace.mix([Numbers(0, 0), Numbers(1000, 3)], [1, 1], when_exhausted=when_exhausted)
    assert list(mixed) == [1000, 1001, 1002]
    assert list(headrace.mix([Numbers(0, 0)], [1], when_exhausted=when_exhausted)) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_share_the_samples(num_workers: int) -> None:
    mixed = headrace.mix([Numbers(0, 31), Counter(1000, 50)], [1, 2], when_exhausted="drop")
    loader = headrace.DataLoader(mixed, batch_size=4, num_workers=num_workers)
    samples = [sample for batch in loader for sample in batch.tolist()]
    assert sorted(samples) == [*range(31), *range(1000, 1050)]


# -- states ------------------------------------------------------------------------------------------------------------


def streams_of(kinds: str, folder: Path) -> list[Any]:
    np.save(folder / "x.npy", np.arange(40))
    np.save(folder / "y.npy", np.arange(1000, 1022))
    stored = [headrace.open(folder / name) for name in ("x.npy", "y.npy")]
    if kinds == "stored":
        return [data.stream().map(int, on="data") for data in stored]
    if kinds == "shuffled":
        return [data.stream(shuffle=6).map(int, on="data") for data in stored]
    if kinds == "plain":
        return [Numbers(0, 40), Numbers(1000, 22)]
    return [Counter(0, 40), Numbers(1000, 22)]


@pytest.mark.parametrize("kinds", ["stored", "shuffled", "plain", "with a state"])
@pytest.mark.parametrize("when_exhausted", ["repeat", "drop"])
def test_a_mixture_resumes_after_every_batch(kinds: str, when_exhausted: Any, tmp_path: Path) -> None:
    def made() -> Any:
        mixed = headrace.mix(streams_of(kinds, tmp_path), [1, 2], when_exhausted=when_exhausted)
        return headrace.DataLoader(mixed, batch_size=5, seed=3, collate_fn=list)

    whole = list(made())
    for stop in range(1, len(whole)):
        loader = made()
        head = list(islice(loader, stop))
        state = json.loads(json.dumps(loader.state_dict()))
        again = made()
        again.load_state_dict(state)
        assert head + list(again) == whole


@pytest.mark.parametrize("stop", [3, 8])
def test_workers_resume_their_parts(stop: int, tmp_path: Path) -> None:
    def made() -> Any:
        mixed = headrace.mix(streams_of("with a state", tmp_path), [1, 2])
        return headrace.DataLoader(mixed, batch_size=5, num_workers=2, seed=3)

    whole = [batch.tolist() for batch in made()]
    loader = made()
    iterator = iter(loader)
    head = [next(iterator).tolist() for _ in range(stop)]
    again = made()
    again.load_state_dict(loader.state_dict())
    assert head + [batch.tolist() for batch in again] == whole


def test_a_stream_with_a_state_is_not_read_again() -> None:
    iterator = iter(headrace.mix([Counter(0, 50), Counter(1000, 50)], [1, 1]))
    list(islice(iterator, 60))
    streams = [Counter(0, 50), Counter(1000, 50)]
    resumed = iter(headrace.mix(streams, [1, 1]))
    resumed.load_state_dict(iterator.state_dict())
    assert next(resumed) == next(iterator)
    assert sum(stream.read for stream in streams) == 1


def test_a_dataset_with_a_state_goes_on_where_it_was() -> None:
    iterator = iter(headrace.mix([Cursor(0, 50), Numbers(1000, 50)], [1, 1], when_exhausted="drop"))
    list(islice(iterator, 31))
    resumed = iter(headrace.mix([Cursor(0, 50), Numbers(1000, 50)], [1, 1], when_exhausted="drop"))
    resumed.load_state_dict(copy.deepcopy(iterator.state_dict()))
    assert list(resumed) == list(iterator)


def test_an_iterator_that_has_gone_on_goes_back_to_a_state() -> None:
    iterator = iter(headrace.mix([Counter(0, 50), Numbers(1000, 50), Cursor(2000, 50)], [1, 1, 1]))
    list(islice(iterator, 17))
    state = copy.deepcopy(iterator.state_dict())
    expected = list(islice(iterator, 40))
    iterator.load_state_dict(state)
    assert list(islice(iterator, 40)) == expected


def test_a_state_of_more_streams_is_refused() -> None:
    state = iter(headrace.mix([Numbers(0, 5), Numbers(1000, 5)], [1, 1])).state_dict()
    with pytest.raises(StateError, match=r"(?s)another mixture.*2 streams.*1 streams"):
        iter(headrace.mix([Numbers(0, 5)], [1])).load_state_dict(state)


# -- weights that change -----------------------------------------------------------------------------------------------


def test_a_schedule_of_samples() -> None:
    mixed = headrace.mix([Numbers(0, 999), Numbers(1000, 999)], {0: [1, 0], 50: [0, 1], 80: [1, 1]})
    sources = sources_in(list(islice(mixed, 120)))
    assert sources[:80] == [0] * 50 + [1] * 30
    assert sources[80:].count(0) == 20


def test_a_schedule_of_tokens() -> None:
    mixed = headrace.mix([Numbers(0, 999), Numbers(1000, 999)], {0: [1, 0], 50: [0, 1]}, unit="tokens", length=_ten)
    assert sources_in(list(islice(mixed, 20))) == [0] * 5 + [1] * 15


def _ten(_: Any) -> int:
    return 10


def test_a_schedule_goes_on_where_all_that_it_is_for_have_ended() -> None:
    schedule = {0: [1, 0], 50: [0, 1]}
    assert list(headrace.mix([Numbers(0, 5), Numbers(1000, 5)], schedule, when_exhausted="drop")) == [
        *range(5),
        *range(1000, 1005),
    ]


def test_a_schedule_counts_the_samples_of_all_workers() -> None:
    mixed = headrace.mix([Numbers(0, 999), Numbers(1000, 999)], {0: [1, 0], 80: [0, 1]})
    loader = headrace.DataLoader(mixed, batch_size=4, num_workers=2)
    sources = sources_in([sample for batch in islice(loader, 40) for sample in batch.tolist()])
    assert sources == [0] * 80 + [1] * 80


@pytest.mark.parametrize("later", [[1, 0], {0: [1, 0], 20: [0, 1]}])
def test_other_weights_are_refused_as_far_as_they_held(later: Any) -> None:
    def mixed(weights: Any) -> Any:
        return iter(headrace.mix([Numbers(0, 999), Numbers(1000, 999)], weights))

    iterator = mixed({0: [1, 0], 50: [1, 1]})
    list(islice(iterator, 10))
    state = iterator.state_dict()
    resumed = mixed(later)
    resumed.load_state_dict(state)
    assert list(islice(resumed, 80)) == list(islice(mixed(later), 10, 90))
    for others in ([0, 1], {0: [1, 1], 50: [1, 1]}):
        with pytest.raises(StateError, match=r"(?s)other weights.*place: +headrace\.mix.*fix:.*<position>"):
            mixed(others).load_state_dict(state)
    mixed(lambda _: [0, 1]).load_state_dict(state)


def test_a_function_is_asked_in_each_window() -> None:
    asked = []

    def weights(position: int) -> list[int]:
        asked.append(position)
        return [1, 0] if position % 60 else [0, 1]

    mixed = headrace.mix([Numbers(0, 999), Numbers(1000, 999)], weights, window=30)
    del asked[:]
    sources = sources_in(list(islice(mixed, 120)))
    assert asked == [0, 30, 60, 90]
    assert sources == ([1] * 30 + [0] * 30) * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_has_changed_holds_from_the_next_window_on(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "weights.json"
    path.write_text('{"a": 1, "b": 0}')

    def made() -> Any:
        streams = {"a": Numbers(0, 999), "b": Numbers(1000, 999)}
        return headrace.DataLoader(headrace.mix(streams, path, window=80), batch_size=4, num_workers=num_workers)

    loader = made()
    iterator = iter(loader)
    samples = [sample for _ in range(6) for sample in next(iterator).tolist()]
    state = loader.state_dict()
    path.write_text('{"a": 0, "b": 1}')
    again = made()
    again.load_state_dict(state)
    samples += [sample for batch in islice(again, 20) for sample in batch.tolist()]
    assert sources_in(samples) == [0] * 80 + [1] * 24


def test_a_broken_file_is_an_error_at_first_and_one_warning_later(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text("[1, 0]")
    iterator = iter(headrace.mix([Numbers(0, 999), Numbers(1000, 999)], path, window=10))
    next(iterator)
    path.write_text("[1, 2")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert sources_in(list(islice(iterator, 50))) == [0] * 50
    assert len(said) == 1
    assert str(path) in str(said[0].message)
    with pytest.raises(UsageError, match=r"(?s)weights\.json.*JSONDecodeError"):
        headrace.mix([Numbers(0, 999), Numbers(1000, 999)], path)


@pytest.mark.parametrize("weights", [[1], [0, 0], [1, -1], [float("nan"), 1], {"a": 1, "b": 1}, {3: [1, 1]}])
def test_weights_that_do_not_fit_are_refused(weights: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)place: +weights=.*found:.*expected:"):
        headrace.mix([Numbers(0, 5), Numbers(1000, 5)], weights)


@pytest.mark.parametrize(
    ("streams", "more", "name"),
    [
        ([3], {}, "streams="),
        ([], {}, "streams="),
        ({1: [1]}, {}, "streams="),
        ([[1]], {"unit": "words"}, "unit="),
        ([[1]], {"when_exhausted": "end"}, "when_exhausted="),
        ([[1]], {"window": 0}, "window="),
        ([[1]], {"length": 3}, "length="),
    ],
)
def test_wrong_arguments_are_refused(streams: Any, more: Any, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        headrace.mix(streams, [1], **more)
    assert name in str(caught.value)


# -- errors, steps, epochs ---------------------------------------------------------------------------------------------


class Faulty(IterableDataset[int]):
    """Its third sample is bad; as a generator, it ends there."""

    def __init__(self, *, generator: bool) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return self.samples() if self.generator else FaultyIterator()

    def samples(self) -> Iterator[int]:
        yield from range(2)
        raise OSError("bad")


class FaultyIterator:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> FaultyIterator:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at == 3:
            raise OSError("bad")
        if self.at > 6:
            raise StopIteration
        return self.at - 1


def test_an_error_names_the_stream() -> None:
    mixed = headrace.mix({"good": Numbers(1000, 9), "bad": Faulty(generator=True)}, [1, 1])
    with pytest.raises(OSError, match="bad") as caught:
        list(mixed)
    assert "headrace: raised by source 'bad' of the mixture" in caught.value.__notes__


def test_a_bad_sample_is_skipped_and_stays_skipped_after_a_resume() -> None:
    def made() -> Any:
        mixed = headrace.mix([Numbers(1000, 9), Faulty(generator=False)], [1, 1], when_exhausted="drop")
        return headrace.DataLoader(mixed, batch_size=3, on_error="skip", collate_fn=list)

    whole = list(made())
    assert {sample for batch in whole for sample in batch} == {0, 1, 3, 4, 5, *range(1000, 1009)}
    for stop in range(1, len(whole)):
        loader = made()
        head = list(islice(loader, stop))
        again = made()
        again.load_state_dict(loader.state_dict())
        assert head + list(again) == whole


def test_a_generator_that_an_error_has_ended_is_not_read_again() -> None:
    iterator = iter(headrace.mix([Faulty(generator=True)], [1]))
    assert [next(iterator), next(iterator)] == [0, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="bad"):
            next(iterator)


def test_a_source_of_empty_documents_holds_up_no_other() -> None:
    empty, full = [np.zeros(0, int)] * 3, [np.arange(5)] * 4
    mixed = list(headrace.mix([empty, full], [1, 1], unit="tokens"))
    assert sum(len(document) for document in mixed) >= 20
    assert sum(not len(document) for document in mixed) >= 3


def test_a_source_that_gets_a_weight_later_comes() -> None:
    mixed = list(headrace.mix([[1, 2, 3], [10] * 5], {0: [1, 0], 100: [0, 1]}))
    assert mixed == [1, 2, 3] * 33 + [1] + [10] * 5


def test_a_mixture_takes_steps() -> None:
    mixed = headrace.mix([Numbers(0, 3), Numbers(1000, 3)], [1, 1], when_exhausted="drop").map(lambda value: -value)
    loader = headrace.DataLoader(mixed, batch_size=6)
    assert next(iter(loader)).tolist() == [0, -1000, -1, -1001, -2, -1002]
    assert torch.equal(next(iter(loader)), next(iter(loader)))


def test_a_step_that_fails_tells_of_which_stream_the_sample_is() -> None:
    def fails(value: int) -> int:
        raise ValueError(value)

    mixed = headrace.mix({"web": Numbers(0, 3), "code": Numbers(1000, 3)}, [0, 1]).map(fails)
    with pytest.raises(ValueError, match="1000") as caught:
        next(iter(mixed))
    assert "sample 0 of source 'code'" in caught.value.__notes__[-1]


def test_streams_hear_of_epochs() -> None:
    class Hearing(Numbers):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    stream = Hearing(0, 3)
    loader = headrace.DataLoader(headrace.mix([stream], [1]), batch_size=3)
    loader.set_epoch(7)
    next(iter(loader))
    assert stream.epoch == 7
