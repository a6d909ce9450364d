"""The record of a loader: nothing is lost in the sums, the latest batches are kept, and the memory stays as it is."""

from __future__ import annotations

import gc
import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.telemetry import recorder as recorder_module
from headrace.telemetry.recorder import COLUMNS, HELD, LIVELY, Recorder
from headrace.telemetry.recording import (
    BATCH,
    MAIN,
    MEMORY,
    EpochTimes,
    Event,
    LoadingPlace,
    Recording,
    Setting,
    Trap,
    stage_seconds,
    totals_of,
)
from headrace.telemetry.timings import BatchTimings
from tests.observe import made_up

OF_THE_PROCESS = ("loop_cpu", "main_cpu", "loop_queued")
"""What the recorder fills in by itself, from the clocks of the process."""


def tell(recorder: Recorder, rows: np.ndarray) -> None:
    """Leaves rows as engines do."""
    recorder.add_rows(np.array([row.item() for row in rows], np.float64).reshape(-1, COLUMNS))


def same(one: np.ndarray, two: np.ndarray, *, but: tuple[str, ...] = ()) -> bool:
    """Whether rows are equal, NaN being equal to NaN."""
    names = [name for name in one.dtype.names or () if name not in but]
    return len(one) == len(two) and all(
        np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f") for name in names
    )


def without_own(totals: Any) -> dict[str, float]:
    """Leaves out what the recorder sees by itself: of this process, and of those beside it if it has looked."""
    seen = (*OF_THE_PROCESS, "opening", "looked", "own_cores", "other_cores")
    return {name: value for name, value in totals.items() if name not in seen}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_sums_are_the_same_in_whatever_pieces_they_come(pieces: list[int], epochs: int, seed: int) -> None:
    rows = made_up.with_workers(sum(pieces), epochs=epochs, seed=seed).batches
    recorder, at = Recorder("x"), 0
    for piece in pieces:
        tell(recorder, rows[at : at + piece])
        at += piece
        assert len(recorder.latest) == at
    found = recorder.recording()
    assert same(found.batches, rows, but=OF_THE_PROCESS)
    assert without_own(found.totals) == pytest.approx(without_own(totals_of(rows)))
    for name in OF_THE_PROCESS:
        assert found.totals[name] == pytest.approx(found.batches[name].sum())


@pytest.mark.thorough
def test_beyond_the_ring_sums_are_of_all_and_rows_are_the_latest() -> None:
    rows = made_up.with_workers(3 * HELD + 17, epochs=5).batches
    recorder = Recorder("x")
    for at in range(0, len(rows), 1000):
        tell(recorder, rows[at : at + 1000])
        recorder.tick(float(at))
    found = recorder.recording()
    assert same(found.batches, rows[-HELD:], but=OF_THE_PROCESS)
    assert without_own(found.totals) == pytest.approx(without_own(totals_of(rows)))
    assert same(recorder.recording(7).batches, rows[-7:], but=OF_THE_PROCESS)


def test_more_rows_at_once_than_the_ring_holds() -> None:
    rows = made_up.with_workers(2 * HELD + 5, epochs=1).batches
    recorder = Recorder("x")
    tell(recorder, rows[:10])
    assert len(recorder.latest) == 10
    tell(recorder, rows[10:])
    assert same(recorder.latest, rows[-HELD:], but=OF_THE_PROCESS)
    assert recorder.recording().totals["batches"] == len(rows)


@pytest.mark.thorough
def test_the_memory_of_a_record_does_not_grow() -> None:
    rows = made_up.with_workers(512, epochs=1).batches
    recorder = Recorder("x")
    sizes = []
    tracemalloc.start()
    try:
        for turn in range(48):
            for row in rows:
                epoch, number, samples, asked, _, *timings = row.item()
                recorder.add(epoch, number, samples, asked, BatchTimings(*timings[:-3]))
            recorder.tick(float(turn))
            for number in range(40):
                recorder.happened("decided", f"{turn} {number}")
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[20] < 100_000  # of 28 * 512 rows, which are 2.4 MB
    assert len(recorder.recording().events) == 512
    assert recorder.recording().events[-1].text == "47 39"


def test_epochs_have_their_beginning_first_batch_end_and_batches() -> None:
    rows = made_up.with_workers(60, epochs=2).batches
    recorder = Recorder("x")
    recorder.begin_epoch(made_up.BEGAN, Setting(num_workers=2), fresh=True)
    tell(recorder, rows[:30])
    recorder.end_epoch(recorder.epoch, 30)
    recorder.begin_epoch(made_up.BEGAN + 100, Setting(num_workers=3), fresh=False)
    tell(recorder, rows[30:37])
    first, second = recorder.recording().epochs
    assert (first.epoch, first.began, first.first) == (0, made_up.BEGAN, rows["delivered"][0])
    assert (first.batches, first.workers, first.fresh) == (30, 2, True)
    assert first.ended > 0
    assert (second.epoch, second.first, second.batches) == (1, rows["delivered"][30], 7)
    assert (second.workers, second.fresh) == (3, False)
    assert math.isnan(second.ended)  # broken off, or going on
    assert recorder.recording().first_seen == made_up.BEGAN


def test_what_lies_between_the_beginning_and_the_first_asking_is_summed_up() -> None:
    rows = made_up.with_workers(60, epochs=2).batches
    recorder = Recorder("x")
    for epoch, wait in enumerate((0.5, 0.25)):
        own = rows[rows["epoch"] == epoch]
        recorder.begin_epoch(float(own["asked"][0]) - wait, Setting(), fresh=True)
        tell(recorder, own)
        recorder.end_epoch(recorder.epoch, len(own))
    assert recorder.recording().totals["opening"] == pytest.approx(0.75)


def test_an_epoch_that_ends_while_another_is_going_on_keeps_its_own_end() -> None:
    loader = headrace.DataLoader(range(8), 4)
    one, two = iter(loader), iter(loader)
    assert [len(list(one)), len(list(two))] == [2, 2]
    first, second = loader.recording.epochs
    assert (first.batches, second.batches) == (2, 2)
    assert first.ended <= second.ended


def test_the_time_of_the_main_process_is_shared_out_without_what_made_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([(10.0, 8.0, 1.0), (20.0, 15.0, 1.5), (21.0, 16.0, 1.5)])
    monkeypatch.setattr(recorder_module, "_spent", lambda: next(spent))
    rows = made_up.with_workers(6, epochs=1).batches.copy()
    rows["worker"][:4], rows["cpu"], rows["queued"] = MAIN, 1.5, 0.1
    recorder = Recorder("x")
    tell(recorder, rows[:4])
    found = recorder.latest
    assert found["loop_cpu"].tolist() == [(10 - 6) / 4] * 4
    assert found["main_cpu"].tolist() == [(7 - 6) / 4] * 4
    assert found["loop_queued"].tolist() == [pytest.approx((0.5 - 4 * 0.1) / 4)] * 4
    tell(recorder, rows[4:])  # made by workers: their time is not that of the main process
    assert recorder.latest["loop_cpu"][4:].tolist() == [0.5, 0.5]


def test_traps_are_noted_once_and_stay() -> None:
    recorder = Recorder("x")
    recorder.begin_epoch(0.0, Setting(num_workers=1), fresh=True)
    for text in ("a", "b", "a"):
        recorder.trapped(Trap("not-pinned", text))
    recorder.begin_epoch(1.0, Setting(num_workers=5), fresh=True)
    setting = recorder.recording().setting
    assert [trap.text for trap in setting.traps] == ["a", "b"]
    assert setting.num_workers == 5
    recorder.adjust(7, 3)
    assert recorder.recording().setting == replace(setting, num_workers=7, prefetch_factor=3)


def test_places_are_shares_of_all_that_was_seen_the_largest_first() -> None:
    recorder = Recorder("x")
    assert recorder.places() == ()
    recorder.saw([("decode", "f", 3), ("read", "g", 1)])
    recorder.saw([("read", "g", 5), ("other", "h", 1)])
    assert recorder.places() == (
        LoadingPlace("read", "g", 0.6),
        LoadingPlace("decode", "f", 0.3),
        LoadingPlace("other", "h", 0.1),
    )
    recorder.saw(("other", str(number), 1) for number in range(40))
    assert len(recorder.places()) == 12


def test_listeners_hear_the_time_and_the_end() -> None:
    heard: list[float] = []
    recorder = Recorder("x")
    recorder.listeners.append(lambda who, now: heard.append(now))
    recorder.begin_epoch(3.0, Setting(), fresh=True)
    assert recorder.due == 3.0 + LIVELY
    recorder.tick(5.0)
    assert recorder.due == 5.0 + LIVELY
    recorder.end_epoch(recorder.epoch, 0)
    assert heard == [5.0, math.inf]


def test_the_memory_is_looked_at_now_and_then_only() -> None:
    recorder = Recorder("x")
    for tenth in range(30):
        recorder.tick(100.0 + tenth / 10)
    memory = recorder.recording().memory
    assert 1 <= len(memory) <= 3  # at most once a second
    assert memory["time"][0] == 100.0
    assert memory["main"][0] > 0


def test_bad_samples_and_restarts_are_asked_for() -> None:
    recorder = Recorder("x")
    recorder.counts = lambda: (3, 2)
    found = recorder.recording()
    assert (found.bad_samples, found.restarts) == (3, 2)


class OwnLoader(headrace.DataLoader[Any]):
    """A user's loader."""


@pytest.mark.parametrize("make", [headrace.DataLoader, OwnLoader])
def test_a_loader_is_named_by_the_line_that_makes_it(make: Callable[..., Any]) -> None:
    loader = make([1, 2])
    line = test_a_loader_is_named_by_the_line_that_makes_it.__code__.co_firstlineno + 2
    assert loader.recorder.label == f"test_recorder.py:{line}"


finite = st.floats(allow_nan=True, allow_infinity=False)
words = st.text(max_size=12)
rows_of_batches = st.lists(st.lists(finite, min_size=COLUMNS, max_size=COLUMNS), max_size=4)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Draws recordings of all kinds of contents, possible or not."""
    table = draw(rows_of_batches)
    rows = np.zeros(len(table), BATCH)
    for column, name in enumerate(BATCH.names or ()):
        whole = BATCH[name].kind == "i"
        rows[name] = [column * 7 + at if whole else row[column] for at, row in enumerate(table)]
    memory = np.array(
        draw(st.lists(st.tuples(finite, st.integers(0, 2**60), st.integers(0, 2**60)), max_size=3)), MEMORY
    )
    return Recording(
        label=draw(words),
        setting=Setting(
            dataset=draw(words), length=draw(st.none() | st.integers(0, 9)), traps=(Trap("a", draw(words)),)
        ),
        batches=rows,
        epochs=(EpochTimes(0, draw(finite), draw(finite), draw(finite)),),
        memory=memory,
        events=(Event(1.5, "added", draw(words), draw(st.none() | st.integers(0, 3))),),
        places=(LoadingPlace("read", draw(words), 0.25),),
        totals=totals_of(rows[:0]),
        first_seen=draw(finite),
        bad_samples=2,
        restarts=1,
    )


@given(recordings())
@settings(deadline=None)
def test_a_recording_comes_back_from_json_as_it_was(given: Recording) -> None:
    text = json.dumps(given.as_json(), allow_nan=False)  # which only a JSON without NaN passes
    found = Recording.from_json(json.loads(text))
    assert same(found.batches, given.batches)
    assert same(found.memory, given.memory)
    assert found.batches.dtype == BATCH
    assert json.dumps(found.as_json(), allow_nan=False) == text
    assert (found.setting, found.events, found.places) == (given.setting, given.events, given.places)
    assert repr(found.epochs) == repr(given.epochs)  # which tells NaN from None
    assert repr((found.label, found.first_seen)) == repr((given.label, given.first_seen))


def test_real_seconds_come_back_from_json_with_every_stage() -> None:
    given = made_up.with_workers(50)
    found = Recording.from_json(json.loads(json.dumps(given.as_json())))
    for name, seconds in stage_seconds(given.batches).items():
        assert stage_seconds(found.batches)[name].tolist() == seconds.tolist()
    assert found.totals == given.totals


def test_a_recording_of_an_older_version_lacks_what_that_did_not_know() -> None:
    plain = json.loads(json.dumps(made_up.with_workers(5).as_json()))
    for name in ("slowest", "others"):
        del plain["batches"][name]
    del plain["setting"]["could_share"]
    found = Recording.from_json(plain)
    assert np.isnan(found.batches["slowest"]).all()
    assert found.batches["samples"].tolist() == [32] * 5
    assert not found.setting.could_share


def test_how_tasks_are_given_out_is_part_of_the_setting() -> None:
    recorder = Recorder("dispatch.py:1")
    recorder.begin_epoch(1.0, Setting(num_workers=2), fresh=True)
    recorder.note_dispatch(shares=False, could_share=True, adapts=True, spare_memory=7)
    setting = recorder.recording().setting
    assert (setting.shares, setting.could_share, setting.adapts, setting.spare_memory) == (False, True, True, 7)
    assert setting.num_workers == 2


def test_each_of_several_loaders_of_one_line_has_a_name_of_its_own() -> None:
    one, two, three = Recorder("train.py:7"), Recorder("train.py:7"), Recorder("train.py:9")
    assert [one.label, two.label, three.label] == ["train.py:7", "train.py:7 #2", "train.py:9"]
    del one
    gc.collect()
    again = Recorder("train.py:7")
    assert (again.label, two.label) == ("train.py:7", "train.py:7 #2")


def test_listeners_hear_of_an_epoch_that_was_left_when_the_next_one_begins() -> None:
    told = []
    loader = headrace.DataLoader(range(12), 4, on_stats=lambda stats: told.append(stats.batches))
    next(iter(loader))
    assert told == []
    assert len(list(loader)) == 3
    assert told == [1, 4]
