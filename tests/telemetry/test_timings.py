"""The names of a batch's row are those of the record."""

from __future__ import annotations

import numpy as np

from headrace.telemetry.recorder import PENDING, Recorder
from headrace.telemetry.recording import BATCH, MAIN
from headrace.telemetry.timings import BatchRow, BatchTimings, complete


def test_a_row_has_the_names_of_the_record_in_its_order() -> None:
    assert BatchRow._fields == BATCH.names


def test_the_timings_of_a_batch_are_a_part_of_its_row() -> None:
    first = BatchRow._fields.index("worker")
    assert BatchTimings._fields == BatchRow._fields[first : first + len(BatchTimings._fields)]


def test_what_is_told_of_a_batch_is_found_under_its_names() -> None:
    told = {name: float(number) for number, name in enumerate(BatchTimings._fields)}
    recorder = Recorder("x")
    recorder.add(epoch=0, number=3, samples=4, asked=5.0, timings=BatchTimings(**told))
    (row,) = recorder.recording().batches
    found = {name: float(row[name]) for name in told}
    assert found == told
    assert (row["epoch"], row["number"], row["samples"], row["asked"]) == (0, 3, 4, 5.0)
    assert row["delivered"] > 0


def test_a_short_batch_that_was_made_here_has_the_same_row_as_one_of_which_all_is_told() -> None:
    short, told = Recorder("short"), Recorder("told")
    timings = (5.0, 1.0, 2.0, 3.0)
    for number in range(3):
        short.add(0, number, 64, 0.5, timings)
        told.add(0, number, 64, 0.5, complete(timings))
    one, other = short.recording().batches, told.recording().batches
    for name in BatchRow._fields:
        if name not in ("delivered", "loop_cpu", "main_cpu", "loop_queued"):
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_row_keeps_nothing_of_the_one_that_lay_there_before() -> None:
    recorder = Recorder("x")
    recorder.add(0, 0, 64, 0.5, BatchTimings(*map(float, range(13))))
    recorder.recording()
    recorder.add(0, 1, 64, 0.5, (5.0, 1.0, 2.0, 3.0))
    row = recorder.recording().batches[-1]
    assert np.isnan([row["posted"], row["sent"], row["arrived"], row["cpu"], row["queued"]]).all()
    assert (row["worker"], row["opened"], row["pinned"]) == (MAIN, 0.0, 0.0)


def test_more_rows_than_may_wait_are_kept_in_their_order() -> None:
    recorder = Recorder("x")
    for number in range(PENDING + 3):
        recorder.add(0, number, 1, 0.5, (5.0, 1.0, 2.0, 3.0))
    recording = recorder.recording()
    assert recording.batches["number"].tolist() == list(range(3, PENDING + 3))
    assert recording.totals["batches"] == PENDING + 3
