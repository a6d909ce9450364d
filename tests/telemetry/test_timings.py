"""The names of a batch's row are those of the record."""

from __future__ import annotations

from headrace.telemetry.recorder import Recorder
from headrace.telemetry.recording import BATCH
from headrace.telemetry.timings import BatchRow, BatchTimings


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
