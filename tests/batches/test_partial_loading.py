"""Samples are timed one by one where they take long, and a worker stops where others make the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from headrace.batches import partial_loading
from headrace.batches.partial_loading import PartialLoading
from headrace.core.process.activity import STOP_ROW, STOP_TASK, TASK, private_activity


class Clock:
    """Stands in for the module `time`: each sample takes as long as it is told."""

    def __init__(self, seconds: list[float]) -> None:
        self.now = 100.0
        self._seconds: Iterator[float] = iter(seconds)
        self.began = False

    def perf_counter(self) -> float:
        """Returns the time, which goes on by one sample behind the beginning."""
        if self.began:
            self.now += next(self._seconds)
        self.began = True
        return self.now


def load(partial: PartialLoading, seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(partial_loading, "time", Clock(seconds))
    began = partial.begin()
    return list(partial.places(len(seconds), began))


def test_the_slowest_sample_is_told_also_where_none_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = PartialLoading(private_activity())
    assert math.isnan(partial.slowest)
    assert load(partial, [0.001, 0.002, 0.001], monkeypatch) == [0, 1, 2]
    assert partial.slowest == pytest.approx(0.002)
    assert list(partial.slow) == []


def test_a_slow_sample_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = PartialLoading(private_activity())
    load(partial, [0.001, 0.001, 0.05, 0.001], monkeypatch)
    assert partial.slowest == pytest.approx(0.05)
    assert [place for place, _ in partial.slow] == [2]


@pytest.mark.parametrize("seconds", [[0.05], [0.001, 0.05], [0.05, 0.05]])
def test_a_slow_sample_is_told_also_in_a_part_that_has_few_others(
    seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = PartialLoading(private_activity())
    load(partial, 8 * [0.001], monkeypatch)
    load(partial, seconds, monkeypatch)
    assert [place for place, _ in partial.slow] == [place for place, each in enumerate(seconds) if each == 0.05]


def test_samples_that_all_take_long_are_not_slow_however_few_a_batch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = PartialLoading(private_activity())
    for _ in range(10):
        load(partial, [0.05], monkeypatch)
        assert list(partial.slow) == []


def test_of_a_batch_whose_samples_were_not_looked_at_the_slowest_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = PartialLoading(private_activity())
    load(partial, [0.001, 0.002], monkeypatch)
    monkeypatch.setattr(partial_loading, "time", Clock([1e-6]))
    began = partial.begin()
    partial.loaded(10, began)
    assert math.isnan(partial.slowest)
    assert not partial.is_worth_it


def test_a_worker_stops_where_others_make_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    activity = private_activity()
    partial = PartialLoading(activity)
    activity[TASK], activity[STOP_TASK], activity[STOP_ROW] = 6, 7, 2
    assert load(partial, [0.003, 0.001, 0.001, 0.001], monkeypatch) == [0, 1]
    assert partial.rows == 2
    assert partial.slowest == pytest.approx(0.003)
