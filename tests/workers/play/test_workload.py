"""What batches take is told apart from who waited for whom, and played through again it takes what was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.telemetry.recording import LoadingPlace, Recording, stage_seconds
from headrace.workers.play.work import Rules
from headrace.workers.play.workload import (
    PLAYED,
    Alike,
    Even,
    Kept,
    KnownSlowSamples,
    Split,
    Without,
    Workload,
    percentile,
    workload_of,
)
from tests.observe import made_up
from tests.observe.diagnosis.steady import MS, Loop, recording_of


def known(recording: Recording) -> Workload:
    work = workload_of(recording)
    assert work is not None
    return work


def measured(recording: Recording) -> float:
    """Seconds of the epochs, from their beginnings."""
    return sum(one.ended - one.began for one in recording.epochs)


@pytest.mark.parametrize(
    "loop",
    [
        Loop(load=30 * MS, loop=10 * MS, workers=1),
        Loop(load=30 * MS, load_cpu=10 * MS, collate=2 * MS, send=1 * MS, loop=10 * MS, workers=2),
        Loop(load=5 * MS, open=1 * MS, pin=2 * MS, loop=10 * MS, workers=3, latency=1 * MS),
        Loop(load=30 * MS, loop=10 * MS, workers=3, prefetch=1, start=0.5, epochs=3, batches=40),
        Loop(load=np.linspace(1, 90, 120) * MS, loop=10 * MS, workers=4, batches=120),
        Loop(load=3 * MS, collate=1 * MS, loop=2 * MS, workers=0),
    ],
    ids=["slow worker", "waiting", "slow training", "starts", "uneven", "inline"],
)
def test_played_through_as_it_was_it_takes_what_was_measured(loop: Loop) -> None:
    recording = recording_of(loop)
    assert known(recording).seconds() == pytest.approx(measured(recording), rel=0.02)


def test_waiting_and_core_seconds_are_told_apart() -> None:
    loop = Loop(load=30 * MS, load_cpu=10 * MS, collate=4 * MS, send=2 * MS, open=1 * MS, pin=3 * MS, loop=50 * MS)
    (work,) = known(recording_of(loop)).epochs
    assert work.wait == pytest.approx(np.full(200, 20 * MS))
    assert work.cpu == pytest.approx(np.full(200, 14 * MS))
    assert work.send == pytest.approx(np.full(200, 2 * MS))
    assert work.open == pytest.approx(np.full(200, 1 * MS))
    assert work.pin == pytest.approx(np.full(200, 3 * MS))
    assert work.loop == pytest.approx(np.full(200, 50 * MS))
    assert (work.in_workers, work.loop_cores, work.start) == (True, pytest.approx(1.0), 0.0)


def test_time_without_a_core_is_nobodys_work() -> None:
    crowded = recording_of(Loop(load=40 * MS, load_cpu=20 * MS, queued=20 * MS, loop=1 * MS, workers=4))
    (work,) = known(crowded).epochs
    assert work.wait == pytest.approx(np.zeros(200))
    assert work.cpu == pytest.approx(np.full(200, 20 * MS))
    parts = known(crowded).parts
    assert parts["read"] == pytest.approx(0.0)
    assert parts["load"] == pytest.approx(1.0)


def test_training_that_waits_for_a_core_is_taken_for_as_long_as_it_ran() -> None:
    recording = recording_of(Loop(load=1 * MS, loop=10 * MS))
    rows = recording.batches.copy()
    rows["main_cpu"], rows["loop_queued"] = 6 * MS, 4 * MS
    (work,) = known(replace(recording, batches=rows)).epochs
    assert float(work.loop.sum()) == pytest.approx(200 * 6 * MS, rel=0.02)


def test_starting_workers_is_told_from_the_first_beginning() -> None:
    work = known(recording_of(Loop(load=10 * MS, loop=10 * MS, workers=4, start=2.0, epochs=2, batches=50)))
    assert [one.start for one in work.epochs] == pytest.approx([0.5, 0.5])
    assert work.is_first
    assert work.rules == Rules(4, 2, True, False, 64)


def test_what_comes_late_comes_late() -> None:
    (work,) = known(recording_of(Loop(load=30 * MS, loop=1 * MS, workers=1, latency=4 * MS))).epochs
    assert work.latency == pytest.approx(4 * MS)
    (work,) = known(recording_of(Loop(load=1 * MS, loop=30 * MS, workers=2, latency=4 * MS, batches=50))).epochs
    assert work.latency == pytest.approx(4 * MS)  # of the first, for which alone training waits


def places(**shares: float) -> dict[str, Any]:
    return {"places": tuple(LoadingPlace(kind, f"{kind} (data.py:1)", share) for kind, share in shares.items())}


def test_parts_of_loading_are_shared_out_by_where_it_was_seen() -> None:
    loop = Loop(
        load=80 * MS, load_cpu=40 * MS, collate=15 * MS, send=5 * MS,
        recording=places(decode=0.3, transform=0.1, read=0.5, other=0.1),
    )  # fmt: skip
    parts = known(recording_of(loop)).parts
    expected = {"read": 0.4, "decode": 0.24, "transform": 0.08, "load": 0.08, "collate": 0.15, "send": 0.05}
    assert parts == pytest.approx(expected)  # the core seconds of loading, 0.4, as 3 : 1 : 1
    assert known(recording_of(replace(loop, recording={}))).parts["load"] == pytest.approx(0.4)
    only_reading = known(recording_of(replace(loop, recording=places(read=1.0)))).parts
    assert (only_reading["load"], only_reading["read"]) == pytest.approx((0.4, 0.4))


def test_without_times_nothing_is_known() -> None:
    assert workload_of(made_up.empty()) is None
    assert workload_of(made_up.one_batch()) is None
    assert workload_of(made_up.nothing_known()) is None
    assert workload_of(made_up.of_torch()) is None


def test_the_latest_batches_are_played() -> None:
    work = known(recording_of(Loop(load=1 * MS, loop=1 * MS, epochs=4, batches=200)))
    assert work.batches == PLAYED
    assert list(map(len, work.epochs)) == [112, 200, 200]
    assert not work.is_first
    assert work.epochs[0].start == 0.0  # whose beginning was not looked at
    assert work.ideal_seconds() == pytest.approx(PLAYED * 1 * MS)


def test_a_change_for_later_epochs_leaves_the_first_one_of_a_loader() -> None:
    work = known(recording_of(Loop(load=10 * MS, loop=10 * MS, start=2.0, epochs=3, batches=50)))
    assert [one.start for one in work.changed(Kept()).epochs] == [pytest.approx(1.0), 0.0, 0.0]
    later = replace(work, is_first=False)
    assert [one.start for one in later.changed(Kept()).epochs] == [0.0, 0.0, 0.0]


def test_changes_do_what_they_say() -> None:
    load = np.tile([10.0, 30.0], 50) * MS
    work = known(recording_of(Loop(load=load, load_cpu=load / 2, send=2 * MS, open=3 * MS, loop=5 * MS, batches=100)))
    (even,) = work.changed(Even()).epochs
    assert even.wait == pytest.approx(np.full(100, 10 * MS))
    assert even.cpu == pytest.approx(np.full(100, 10 * MS))
    (less,) = work.changed(Without(wait=0.5, cpu=0.25, send=1.0, open=1.0)).epochs
    (whole,) = work.epochs
    assert less.wait == pytest.approx(whole.wait / 2)
    assert less.cpu == pytest.approx(whole.cpu * 0.75)
    assert float(less.send.sum() + less.open.sum()) == 0.0
    (parts,) = work.changed(Split(4)).epochs
    assert (len(parts), float(parts.cpu.sum())) == (400, pytest.approx(float(whole.cpu.sum())))


def late_batches(slowest: float) -> Loop:
    """Of 200 batches of 16 samples, eight take 100 ms and the others 16 ms."""
    load = np.full(200, 16 * MS)
    load[7::25] = 100 * MS
    return Loop(load=load, slowest=np.where(load > 16 * MS, slowest, 1 * MS), loop=4 * MS, workers=4)


@pytest.mark.parametrize(
    ("slowest", "share"),
    [
        (80 * MS, 0.8),
        (9 * MS, 0.09),
        (np.nan, 0.85),  # what it takes more than usual counts as one sample's, and a usual sample is in it, too
    ],
)
def test_the_share_of_the_slowest_sample_is_known_or_supposed(slowest: float, share: float) -> None:
    (work,) = known(recording_of(late_batches(slowest))).epochs
    assert work.single is not None
    assert work.samples == 16
    assert work.single[7::25] == pytest.approx(np.full(8, share))
    assert work.single[0] == pytest.approx(1 / 16)


def test_what_other_workers_made_of_a_batch_is_work_too() -> None:
    recording = recording_of(Loop(load=10 * MS, slowest=2 * MS, workers=4))
    rows = recording.batches.copy()
    rows["others"], rows["cpu"], rows["load_cpu"] = 30 * MS, 20 * MS, 20 * MS
    (work,) = known(replace(recording, batches=rows)).epochs
    assert work.cpu == pytest.approx(np.full(200, 20 * MS))
    assert work.wait == pytest.approx(np.full(200, 20 * MS))
    assert work.single == pytest.approx(np.full(200, 2 / 40))
    assert known(replace(recording, batches=rows)).parts["read"] == pytest.approx(0.5)


def test_batches_are_played_as_they_were_given_out() -> None:
    shared = {"shares": True, "free": True, "spare_memory": 5_500, "adapts": True}
    loop = replace(late_batches(80 * MS), setting=shared, prefetch=8, epochs=2)
    work = known(recording_of(loop))
    assert work.rules == Rules(4, 8, True, True, 64, ahead=8, spare=5, shares=True)
    assert [one.slow_known for one in work.epochs] == [False, True]
    assert known(recording_of(replace(loop, setting=shared | {"adapts": False}))).rules.ahead == 2
    assert known(recording_of(replace(loop, setting={"spare_memory": 10**9}))).rules.spare == 1000
    unshared = known(recording_of(replace(loop, setting={})))
    assert [one.slow_known for one in unshared.epochs] == [False, False]
    assert [one.slow_known for one in unshared.changed(KnownSlowSamples()).epochs] == [False, True]
    assert [one.single for one in unshared.changed(Alike()).epochs] == [None, None]


def test_batches_again_and_again_are_one_long_epoch() -> None:
    loop = Loop(load=np.arange(1, 51) * MS, loop=1 * MS, workers=4, start=2.0, batches=50, epochs=2)
    work = known(recording_of(loop))
    longer = work.repeated(120)
    (epoch,) = longer.epochs
    assert (len(epoch), len(longer.took[0]), epoch.start) == (120, 120, pytest.approx(0.5))
    assert epoch.cpu == pytest.approx(np.tile(work.epochs[0].cpu, 3)[:120])


def test_percentiles() -> None:
    assert percentile(np.array([1.0, math.nan, 3.0]), 50) == 2.0
    assert math.isnan(percentile(np.array([math.nan]), 50))


def test_a_made_up_recording_with_chance_is_played_as_it_was() -> None:
    recording = made_up.with_workers(400, 2, epochs=2, seed=3)
    stages = stage_seconds(recording.batches)
    spent = sum(one.first - one.began for one in recording.epochs) + float(
        stages["loop"].sum() + stages["wait"][recording.batches["number"] > 0].sum()
    )
    assert known(recording).seconds() == pytest.approx(spent, rel=0.1)
