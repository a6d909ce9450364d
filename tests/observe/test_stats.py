"""Figures of a loader come from its sums and its latest batches, and from recordings that lack most of it, too."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from headrace.observe.stats import LoaderStats, stats_of
from headrace.telemetry.recording import BATCH, MAIN, MEMORY, STAGES, EpochTimes, Recording, totals_of

NAN = float("nan")


def batches_of_two_workers(count: int, epoch: int = 0) -> np.ndarray:
    """Batch n is begun at second n by worker n % 2, takes it 0.5 + 0.25 + 0.25 s, is waited for 0.5 s, and for 2 s the
    loop works on it."""
    rows = np.zeros(count, BATCH)
    for name in BATCH.names or ():
        if BATCH[name].kind == "f":
            rows[name] = NAN
    begun = 100.0 * epoch + np.arange(count) * 2.5
    rows["epoch"], rows["number"], rows["worker"] = epoch, np.arange(count), np.arange(count) % 2
    rows["samples"], rows["bytes"] = 8, 1000
    rows["posted"], rows["begun"], rows["loaded"] = begun, begun, begun + 0.5
    rows["collated"], rows["sent"], rows["arrived"] = begun + 0.75, begun + 1.0, begun + 1.5
    rows["asked"], rows["delivered"] = begun + 1.5, begun + 2.0
    return rows


def test_sums_are_over_all_batches_and_distributions_over_the_latest() -> None:
    rows = batches_of_two_workers(100)
    rows["delivered"][-1] += 10.0
    stats = stats_of(Recording(label="train.py:3", batches=rows[-10:], totals=totals_of(rows)))
    assert (stats.label, stats.batches, stats.samples, stats.bytes) == ("train.py:3", 100, 800, 100_000)
    assert stats.waited == pytest.approx(100 * 0.5 + 10)
    assert stats.looped == pytest.approx(100 * 0.5 + 10 + 99 * 2.0)
    assert stats.wait_share == pytest.approx(60 / 258)
    assert stats.samples_per_second == pytest.approx(800 / 258)
    assert stats.bytes_per_second == pytest.approx(100_000 / 258)
    wait = stats.stages["wait"]
    assert (wait.seconds, wait.mean, wait.p50, wait.max) == pytest.approx((60.0, 1.5, 0.5, 10.5))
    assert wait.p95 == pytest.approx(np.percentile([0.5] * 9 + [10.5], 95))
    load = stats.stages["load"]
    assert (load.seconds, load.mean, load.p50, load.p95, load.max) == pytest.approx((50.0, 0.5, 0.5, 0.5, 0.5))


def test_the_last_batch_of_an_epoch_has_no_time_of_the_loop() -> None:
    rows = np.concatenate([batches_of_two_workers(2, 0), batches_of_two_workers(2, 1)])
    loop = stats_of(Recording(batches=rows, totals=totals_of(rows))).stages["loop"]
    assert (loop.seconds, loop.mean, loop.p50, loop.max) == pytest.approx((4.0, 2.0, 2.0, 2.0))


def test_workers_are_busy_for_their_share_of_each_epoch() -> None:
    rows = np.concatenate([batches_of_two_workers(9, 0), batches_of_two_workers(9, 1)])
    rows["worker"][rows["number"] == 8] = 7  # 9 batches: 4 each for workers 0 and 1, and one for worker 7
    workers = stats_of(Recording(batches=rows, totals=totals_of(rows))).workers
    span = 8 * 2.5 + 2.0  # of an epoch, from the first beginning to the last delivery; the pause between does not count
    spans = 2 * span, 2 * span - 2.5, span + 2.0  # of each worker from its own first batch on
    assert [(one.worker, one.batches) for one in workers] == [(0, 8), (1, 8), (7, 2)]
    shares = [done / its for done, its in zip((8, 8, 2), spans, strict=True)]
    assert [one.busy for one in workers] == pytest.approx(shares)
    assert [one.seconds for one in workers] == pytest.approx([1.0, 1.0, 1.0])


def test_a_loop_without_workers_has_the_main_process_for_one() -> None:
    rows = batches_of_two_workers(3)
    rows["worker"] = MAIN
    for name in ("posted", "sent", "arrived"):
        rows[name] = NAN
    stats = stats_of(Recording(batches=rows, totals=totals_of(rows)))
    (only,) = stats.workers
    assert (only.worker, only.batches, only.busy, only.seconds) == (MAIN, 3, 3 * 0.75 / 7, 0.75)
    assert (stats.stages["send"].seconds, stats.stages["transport"].seconds) == (0.0, 0.0)


def test_the_first_batch_is_the_median_of_the_epochs_that_had_one() -> None:
    times = [EpochTimes(0, 10.0, 13.0, 20.0), EpochTimes(1, 30.0, 31.0, 40.0), EpochTimes(2, 50.0)]
    stats = stats_of(Recording(epochs=tuple(times)))
    assert (stats.epochs, stats.first_batch) == (3, 2.0)


def test_the_start_of_an_epoch_is_waiting_too() -> None:
    rows = np.concatenate([batches_of_two_workers(4, 0), batches_of_two_workers(4, 1)])
    began = [rows["asked"][0] - 3.0, rows["asked"][4] - 1.0]
    epochs = tuple(EpochTimes(number, at) for number, at in enumerate(began))
    stats = stats_of(Recording(batches=rows, epochs=epochs, totals=totals_of(rows)))
    assert (stats.waited, stats.looped) == pytest.approx((4.0 + 4.0, 4.0 + 4.0 + 12.0))
    later = Recording(batches=rows[-2:], epochs=epochs, totals=totals_of(rows) | {"opening": 4.0})
    assert stats_of(later).waited == pytest.approx(8.0)


def test_epochs_are_counted_by_the_loader() -> None:
    assert stats_of(Recording(epochs=(EpochTimes(700, 1.0), EpochTimes(701, 2.0)))).epochs == 702


def test_memory_is_what_was_seen_last() -> None:
    seen = np.array([(1.0, 10, 20), (2.0, 30, 40)], MEMORY)
    stats = stats_of(Recording(memory=seen, bad_samples=3, restarts=2))
    assert (stats.memory_main, stats.memory_workers, stats.bad_samples, stats.restarts) == (30, 40, 3, 2)


def test_an_empty_recording_has_figures_too() -> None:
    stats = stats_of(Recording())
    assert (stats.epochs, stats.batches, stats.looped, stats.wait_share, stats.samples_per_second) == (0, 0, 0, 0, 0)
    assert stats.workers == () and math.isnan(stats.first_batch)
    assert list(stats.stages) == list(STAGES)
    assert all(stage.seconds == 0 and math.isnan(stage.mean) for stage in stats.stages.values())


def test_of_a_loader_that_only_knows_asked_and_delivered_the_loop_is_told() -> None:
    rows = batches_of_two_workers(5)
    for name in BATCH.names or ():
        if BATCH[name].kind == "f" and name not in ("asked", "delivered"):
            rows[name] = NAN
    stats = stats_of(Recording(batches=rows, totals=totals_of(rows)))
    assert stats.wait_share == pytest.approx(2.5 / 10.5)
    assert stats.workers == ()
    assert [name for name, stage in stats.stages.items() if stage.seconds] == ["wait", "loop"]


def test_json_has_none_for_what_is_not_known_and_the_rates() -> None:
    rows = batches_of_two_workers(4)
    stats = stats_of(Recording(batches=rows, totals=totals_of(rows)))
    plain = json.loads(json.dumps(stats.as_json(), allow_nan=False))
    assert plain["first_batch"] is None
    assert plain["wait_share"] == stats.wait_share and plain["bytes_per_second"] == stats.bytes_per_second
    assert plain["stages"]["load"] == {"seconds": 2.0, "mean": 0.5, "p50": 0.5, "p95": 0.5, "max": 0.5}
    assert plain["workers"][1] == {"worker": 1, "batches": 2, "busy": 2 / 7.0, "seconds": 1.0, "host": ""}
    assert json.loads(json.dumps(LoaderStats().as_json(), allow_nan=False))["stages"] == {}
