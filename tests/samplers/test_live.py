"""The order of data that never end: each sample once over all ranks, and the same order after any resume."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import StateError
from headrace.core.spans import Beginning, NothingYetError, Range, Span, SpanKeys
from headrace.samplers.live import LiveSampler, WaitingBatches
from tests.sources.loading import flat


class Given:
    """Spans of so many samples each, of one partition. Every second one has to be waited for."""

    feed = None

    def __init__(self, counts, beginning, epoch):
        self.beginning = Beginning({"log": "a"}, {0: 0}, None)
        self.epoch = epoch
        self.freed = 0
        self._spans = []
        self._is_there = False
        first = 0
        for number, count in enumerate(counts):
            self._spans.append(Span(number, first, count, (Range(0, first, first + count),)))
            first += count
        if beginning.known:
            self._spans = [*beginning.spans, *self._spans[beginning.known[-1].number + 1 :]]

    def next_span(self):
        self._is_there = not self._is_there
        if self._is_there:
            raise NothingYetError
        if not self._spans:
            return None
        return self._spans.pop(0)

    def wait(self, timeout):
        pass

    def fileno(self):
        return -1

    def passed(self, number):
        self.freed = number

    def reads(self):
        return None

    def close(self):
        pass


def sampler(counts, *, endless=False, **order):
    return LiveSampler(lambda beginning, epoch: Given(counts, beginning, epoch), endless=endless, **order)


def numbers(keys: SpanKeys) -> list[int]:
    return [key.span.first + key.row for key in keys]


def batches(one, size, *, drop_last=False, most=None):
    found = []
    for keys in WaitingBatches(one.key_batches(size, drop_last=drop_last)):
        found.append(numbers(keys))
        if len(found) == most:
            break
    return found


COUNTS = st.lists(st.integers(1, 30), max_size=8)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 7), st.integers(1, 4), st.booleans(), st.integers(0, 9))
def test_each_sample_goes_to_one_rank(counts, size, ranks, shuffle, seed):
    total = sum(counts)
    parts = []
    for rank in range(ranks):
        one = sampler(counts, shuffle=shuffle, seed=seed, rank=rank, world_size=ranks, uneven="keep")
        parts.append([number for batch in batches(one, size) for number in batch])
    assert sorted(number for part in parts for number in part) == list(range(total))


@settings(deadline=None)
@given(COUNTS, st.integers(1, 7), st.integers(1, 4))
def test_ranks_have_equally_many_batches(counts, size, ranks):
    shapes = set()
    for rank in range(ranks):
        one = sampler(counts, rank=rank, world_size=ranks, uneven="pad")
        shapes.add(tuple(map(len, batches(one, size))))
    assert len(shapes) == 1


@settings(deadline=None)
@given(COUNTS, st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(0, 12), st.booleans())
def test_a_resume_goes_on_with_the_next_sample(counts, size, ranks, later_ranks, steps, shuffle):
    """Also on another number of ranks: the samples of all ranks together, batch by batch."""
    together = size * ranks * later_ranks

    def samples_of(world, state=None, most=None):
        parts = []
        states = []
        for rank in range(world):
            one = sampler(counts, shuffle=shuffle, rank=rank, world_size=world, uneven="keep")
            if state is not None:
                one.load_state_dict(state)
            parts.append(batches(one, together // world, most=most))
            states.append(one.state_dict())

        joined = []
        for number in range(max(map(len, parts))):
            joined.append(sorted(flat(part[number] for part in parts if number < len(part))))
        return joined, states[0]

    whole, _ = samples_of(1)
    before, state = [], None
    if steps:
        before, state = samples_of(ranks, most=steps)
    after, _ = samples_of(later_ranks, state)
    assert sorted(flat(before + after)) == list(range(sum(counts)))
    assert before + after == [sorted(batch) for batch in whole]


@settings(deadline=None)
@given(COUNTS, st.integers(1, 7), st.integers(0, 5))
def test_a_shuffled_span_keeps_its_samples(counts, size, seed):
    one = sampler(counts, shuffle=True, seed=seed)
    order = [number for batch in batches(one, size) for number in batch]
    first = 0
    for count in counts:
        assert sorted(order[first : first + count]) == list(range(first, first + count))
        first += count


def test_a_further_epoch_has_the_same_samples_in_another_order():
    one = sampler([40, 40], shuffle=True)
    first = batches(one, 8)
    one.set_epoch(1)
    second = batches(one, 8)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(80))


def test_data_without_an_end_go_on_whatever_the_epoch_is_called():
    one = sampler([40, 40], shuffle=True, endless=True)
    running = WaitingBatches(one.key_batches(8, drop_last=False))
    before = [numbers(next(running)) for _ in range(3)]
    one.set_epoch(5)
    assert before + [numbers(keys) for keys in running] == batches(sampler([40, 40], shuffle=True, endless=True), 8)


def test_a_number_that_is_said_again_in_mid_epoch_changes_nothing():
    one = sampler([40, 40], shuffle=True)
    one.set_epoch(1)
    whole = batches(one, 8)
    one.set_epoch(1)
    running = WaitingBatches(one.key_batches(8, drop_last=False))
    before = [numbers(next(running)) for _ in range(3)]
    one.set_epoch(1)
    assert one.state_dict()["position"] == 24
    assert before + [numbers(keys) for keys in running] == whole


def test_another_number_in_mid_epoch_is_for_the_next_one():
    one = sampler([40, 40], shuffle=True)
    running = WaitingBatches(one.key_batches(8, drop_last=False))
    before = [numbers(next(running)) for _ in range(3)]
    one.set_epoch(1)
    assert sorted(flat(before + [numbers(keys) for keys in running])) == list(range(80))


def test_spans_that_are_over_leave_the_state():
    one = sampler([10, 10, 10])
    running = WaitingBatches(one.key_batches(5, drop_last=False))
    for expected in ([0], [0], [1], [1], [2], [2]):
        next(running)
        assert [span["number"] for span in one.state_dict()["spans"]] == expected


def test_spans_are_freed_behind_the_batches_that_left():
    one = sampler([10, 10, 10])
    running = one.key_batches(5, drop_last=False)
    waiting = WaitingBatches(running)
    for _ in range(6):
        next(waiting)
    running.listen(100)
    freed = []
    for number in range(100, 106):
        running.passed(number)
        freed.append(running.supply.freed)
    assert freed == [0, 1, 1, 2, 2, 3]


def test_lost_spans_are_passed_over():
    spans = [Span(0, 0, 10, (Range(0, 0, 10),)), Span(1, 10, 10, (Range(0, 10, 20),), lost=True)]
    last = Span(2, 20, 4, (Range(0, 20, 24),))

    class Lossy(Given):
        def __init__(self, beginning, epoch):
            super().__init__([], beginning, epoch)
            self._spans = [*spans, last]

    one = LiveSampler(Lossy, endless=False)
    assert flat(batches(one, 10)) == [*range(10), *range(20, 24)]


@pytest.mark.parametrize(
    "damage", [{"position": 99}, {"position": -1}, {"spans": [{"number": 0}]}, {"begin": 5}, {"seed": 7}]
)
def test_a_damaged_state_is_refused(damage):
    one = sampler([10, 10])
    batches(one, 5, most=1)
    state = {**one.state_dict(), **damage}
    with pytest.raises(StateError):
        sampler([10, 10]).load_state_dict(state)


def test_keys_of_samples_make_the_keys_of_a_batch():
    span = Span(0, 0, 9, (Range(0, 0, 9),))
    other = Span(1, 9, 9, (Range(0, 9, 18),))
    keys = SpanKeys(None, ((span, np.array([3, 1])), (other, np.array([0]))))
    again = SpanKeys.of(keys.tolist())
    assert [(part.number, rows.tolist()) for part, rows in again.parts] == [(0, [3, 1]), (1, [0])]
    assert repr(keys.tolist()[0]) == "span 0, row 3"
