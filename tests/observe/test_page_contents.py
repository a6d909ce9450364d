"""What is prepared once, idleness, lines of the source and the next command have their places on the page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.observe.page.page import page
from headrace.observe.page.shares import by_line, main_pieces
from headrace.observe.stats import stats_of
from headrace.telemetry.recording import LoadingPlace, Recording, totals_of
from headrace.telemetry.remote_reads import RemoteReads, TrafficWindow
from tests.observe import made_up
from tests.observe.diagnosis.steady import Loop, recording_of
from tests.observe.made_up import TIMES
from tests.observe.test_page import shown


def slow_at_first(*, workers: int = 2) -> Recording:
    """The first batch of each worker takes 3 s, and so does the first step of training."""
    load = np.full(60, 0.02)
    load[: max(workers, 1)] = 3.0
    recording = recording_of(Loop(load=load, loop=0.03, workers=workers, batches=60))
    rows = recording.batches.copy()
    for name in TIMES:
        rows[name][1:] += 3.0
    return replace(recording, batches=rows, totals={**recording.totals, **totals_of(rows)})


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_prepared_once_is_drawn_as_such_and_not_as_loading_or_training(workers: int) -> None:
    recording = slow_at_first(workers=workers)
    (drawing,) = shown(recording, diagnoses=[]).drawings()
    assert drawing["prepared"] == list(range(max(workers, 1)))
    assert drawing["first_step"] == 0
    pieces = {piece.stage: piece.seconds for piece in main_pieces(recording)}
    assert sum(pieces.values()) == pytest.approx(stats_of(recording).looped)
    assert pieces["start"] >= 2.9 and pieces["first"] == pytest.approx(3.0, abs=0.1)
    assert pieces["train"] == pytest.approx(59 * 0.03, rel=0.05)


def test_usual_first_batches_and_steps_are_drawn_like_any_other() -> None:
    for recording in (made_up.with_workers(), made_up.inline(), made_up.of_torch()):
        (drawing,) = shown(recording, diagnoses=[]).drawings()
        assert (drawing["prepared"], drawing["first_step"]) == ([], None)


def test_workers_of_other_machines_are_named_with_them() -> None:
    recording = made_up.with_workers()
    setting = replace(recording.setting, remote_cores=32)
    read = shown(replace(recording, setting=setting, hosts={0: "gpu-7", 1: "<b>gpu-8"}), diagnoses=[])
    assert "2 processes, placed by Ray" in read.texts["td"]
    assert "1 worker on <b>gpu-8, 1 worker on gpu-7" in read.texts["td"]
    (drawing,) = read.drawings()
    assert drawing["names"] == {"0": "worker 0 on gpu-7", "1": "worker 1 on <b>gpu-8"}


@pytest.mark.parametrize(
    ("fork_server", "words"), [(False, "2 processes, spawn"), (True, "2 processes, spawn by a fork server")]
)
def test_the_start_of_workers_is_named(fork_server: bool, words: str) -> None:
    recording = made_up.with_workers()
    setting = replace(recording.setting, start_method="spawn", fork_server=fork_server)
    assert words in shown(replace(recording, setting=setting), diagnoses=[]).texts["td"]


def test_idleness_is_in_the_legend_where_workers_are_drawn() -> None:
    assert "idle" in shown(made_up.with_workers(), diagnoses=[]).texts["li"]
    assert "idle" not in shown(made_up.inline(), diagnoses=[]).texts["li"]


def test_a_source_line_has_one_row_with_the_sum_of_its_places() -> None:
    places = (
        LoadingPlace("decode", "Photos.decode (train.py:12)", 0.3),
        LoadingPlace("read", "read (other.py:12)", 0.25),
        LoadingPlace("other", "Photos.decode (train.py:12)", 0.25),
        LoadingPlace("decode", "Photos.decode.<locals>.inner (train.py:12)", 0.1),
        LoadingPlace("transform", "where nobody knows", 0.1),
    )
    grouped = [(one.kind, one.where, round(one.share, 2)) for one in by_line(places)]
    assert grouped == [
        ("decode, other", "Photos.decode (train.py:12)", 0.65),
        ("read", "read (other.py:12)", 0.25),
        ("transform", "where nobody knows", 0.1),
    ]
    page_text = shown(replace(made_up.with_workers(), places=places), diagnoses=[]).read()
    assert page_text.count("train.py:12") == 1


def test_the_page_ends_with_what_to_run_next() -> None:
    whole = page("train.py", 12.0, [made_up.with_workers()], [], made_up.MACHINE, "headrace run --num-workers 4 <x>.py")
    assert "<code>headrace run --num-workers 4 &lt;x&gt;.py</code>" in whole
    assert "What to run next" not in page("train.py", 12.0, [made_up.with_workers()], [], made_up.MACHINE)


def test_the_rate_over_a_network_is_drawn_over_time() -> None:
    windows = tuple(TrafficWindow(made_up.BEGAN + number, 1.0, 1e6 * number, 2.0 * number) for number in range(6))
    remote = RemoteReads(requests=30, bytes=15_000_000, windows=windows)
    recording = replace(made_up.with_workers(40), remote=remote)
    html = page("train.py", 1.0, [recording], [], made_up.MACHINE)
    drawn = html.partition("<h3>Over the network</h3>")[2].partition("<h3>")[0]
    assert "15.0 MB in 30 requests" in drawn
    assert "at most <b>5.00 MB/s</b>" in drawn
    assert "requests in flight, at most <b>10</b>" in drawn
    assert "<svg" in drawn
    for few in (replace(remote, windows=windows[:1]), replace(remote, windows=())):
        html = page("train.py", 1.0, [replace(recording, remote=few)], [], made_up.MACHINE)
        assert "<svg" not in html.partition("<h3>Over the network</h3>")[2].partition("<h3>")[0]
