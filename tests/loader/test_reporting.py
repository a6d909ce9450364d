"""What a loader tells of itself, and when it calls its user to tell it."""

from __future__ import annotations

import gc
import math
import re
from typing import Any

import pytest

import headrace
from headrace.loader.reporting import EVERY, Report, Telling
from headrace.observe.diagnosis.finding import Diagnosis
from headrace.observe.stats import LoaderStats
from headrace.telemetry import recorder as recorder_module
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.recording import Recording, Setting

engines = pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2}, {"num_workers": 2, "backend": "thread"}], ids=["inline", "process", "thread"]
)


class Stop(Exception):
    """What a user's function raises."""


def test_it_is_told_every_so_many_seconds_and_at_the_end() -> None:
    heard: list[float] = []
    telling, recorder, clock = Telling(lambda stats: heard.append(clock)), Recorder("x"), 0.0
    for clock in (50.0, 50.2, 50.0 + EVERY - 0.1, 50.0 + EVERY, 50.2 + EVERY, 50.1 + 2 * EVERY, 50.2 + 2 * EVERY):
        telling(recorder, clock)
    assert heard == [50.0 + EVERY, 50.1 + 2 * EVERY]
    clock = math.inf  # the end of an epoch
    telling(recorder, clock)
    assert heard[2:] == [math.inf]
    for clock in (90.0, 90.0 + EVERY - 0.1, 90.0 + EVERY):
        telling(recorder, clock)
    assert heard[3:] == [90.0 + EVERY]


@engines
def test_it_is_told_at_the_end_of_each_epoch(how: dict[str, Any]) -> None:
    heard: list[LoaderStats] = []
    loader = headrace.DataLoader(range(22), 4, on_stats=heard.append, **how)
    for epoch in (1, 2):
        list(loader)
        assert [(one.batches, one.samples, one.epochs) for one in heard] == [
            (6 * number, 22 * number, number) for number in range(1, epoch + 1)
        ]
    assert all(type(one) is LoaderStats for one in heard)
    assert heard[-1].label == loader.recorder.label
    assert heard[-1].samples_per_second > 0


def test_it_is_told_in_the_middle_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "LIVELY", 0.0)
    monkeypatch.setattr("headrace.loader.reporting.EVERY", 0.0)
    heard: list[int] = []
    loader = headrace.DataLoader(range(22), 4, on_stats=lambda stats: heard.append(stats.batches))
    for _ in loader:
        pass
    assert len(heard) > 3
    assert heard == sorted(heard)
    assert heard[-1] == 6


def test_an_epoch_that_is_broken_off_tells_nothing() -> None:
    heard: list[LoaderStats] = []
    loader = headrace.DataLoader(range(22), 4, on_stats=heard.append)
    next(iter(loader))
    gc.collect()
    assert heard == []


@engines
def test_an_error_of_the_users_function_reaches_the_user_at_the_end(how: dict[str, Any]) -> None:
    def refuse(stats: LoaderStats) -> None:
        raise Stop

    loader = headrace.DataLoader(range(22), 4, on_stats=refuse, **how)
    batches = []
    iterator = iter(loader)
    with pytest.raises(Stop):
        batches.extend(iterator)
    assert len(batches) == 6
    assert list(iterator) == []  # which has ended all the same
    assert loader.state_dict()["finished"]
    (epoch,) = loader.recording.epochs
    assert (epoch.batches, epoch.ended == epoch.ended) == (6, True)


@engines
def test_an_error_of_the_users_function_costs_no_batch(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "LIVELY", 0.0)
    monkeypatch.setattr("headrace.loader.reporting.EVERY", 0.0)
    calls: list[int] = []

    def refuse_once(stats: LoaderStats) -> None:
        calls.append(stats.batches)
        if len(calls) == 3:
            raise Stop

    loader = headrace.DataLoader(range(22), 4, on_stats=refuse_once, **how)
    batches: list[Any] = []
    iterator = iter(loader)
    with pytest.raises(Stop):
        batches.extend(iterator)
    batches.extend(iterator)
    assert [number for batch in batches for number in batch.tolist()] == list(range(22))


def test_a_loader_without_batches_tells_of_none() -> None:
    loader = headrace.DataLoader(range(22), 4)
    assert (loader.stats.batches, loader.stats.epochs, loader.stats.wait_share) == (0, 0, 0.0)
    assert loader.diagnose().summary == "No batch was delivered."
    assert "No batch was delivered." in str(loader.report())


@engines
def test_what_a_loader_tells_is_a_snapshot(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(range(200), 4, **how)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    stats, recording, report = loader.stats, loader.recording, loader.report()
    text = str(report)
    list(iterator)
    assert (stats.batches, len(recording.batches), len(report.recording.batches)) == (10, 10, 10)
    assert str(report) == text
    assert loader.stats.batches == 50
    assert type(recording) is Recording
    assert type(loader.diagnose()) is Diagnosis
    assert type(report) is Report
    assert all(len(line) <= 80 for line in text.splitlines())
    assert re.search(r"test_reporting\.py:\d+( #\d)?: The loop waited", text)


def test_reports_are_readable_where_python_shows_them() -> None:
    report = Report(Recording(label="x", setting=Setting()))
    assert repr(report) == str(report)
    assert str(report).startswith("x: No batch was delivered.")
