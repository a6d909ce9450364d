"""Findings that few batches, chance or other processes would make wrong are held back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.observe.diagnosis.diagnose import diagnose
from tests.observe import made_up
from tests.observe.diagnosis.steady import MS, Loop, recording_of
from tests.observe.diagnosis.test_rules import CROWDED, EVERY, FEW, TWO_CORES, findings

# -- a busy machine ----------------------------------------------------------------------------------------------------

QUEUED = replace(FEW, load=120 * MS, load_cpu=4 * MS, queued=60 * MS, workers=2, setting=TWO_CORES)
"""Of making a batch, half is waiting for a core, and nearly half waiting for what is not known."""

OTHERS_RUN = {"looked": 10.0, "own_cores": 2.0, "other_cores": 18.0}


def test_where_others_have_the_cores_that_is_said_and_nothing_is_advised_that_rests_on_it() -> None:
    alone, beside = diagnose(recording_of(QUEUED)), diagnose(recording_of(replace(QUEUED, totals=OTHERS_RUN)))
    assert {"slow-read", "too-few-workers"} <= {one.name for one in alone.findings}
    assert [one.name for one in beside.findings] == ["machine-busy"]
    assert (beside.limit, beside.findings[0].gain, beside.findings[0].change) == ("machine", None, {})
    assert "other processes took 1.8 of 2 cores" in beside.findings[0].sentence
    assert beside.summary.endswith("on a machine where other processes took 1.8 cores.")


def test_beside_others_no_sentence_and_no_figure_says_what_would_be_gained() -> None:
    for loop in (QUEUED, replace(QUEUED, loop=200 * MS)):
        alone, beside = diagnose(recording_of(loop)), diagnose(recording_of(replace(loop, totals=OTHERS_RUN)))
        assert alone.ideal_gain is not None
        assert beside.ideal_gain is None
        assert not [one.sentence for one in beside.findings if "times as fast" in one.sentence]


def test_what_core_seconds_tell_is_said_on_a_busy_machine_too_without_a_gain() -> None:
    (found,) = (one for one in diagnose(recording_of(replace(CROWDED, totals=OTHERS_RUN))).findings[1:])
    assert (found.name, found.gain) == ("slow-load", None)


@pytest.mark.parametrize(
    "totals",
    [
        {},
        OTHERS_RUN | {"other_cores": 2.0},  # a fifth of a core
        OTHERS_RUN | {"looked": 0.0},
    ],
)
def test_workers_that_queue_for_each_other_do_not_make_a_machine_busy(totals: dict[str, float]) -> None:
    found = findings(replace(CROWDED, totals=totals))
    assert "too-many-workers" in found
    assert "machine-busy" not in found


def test_other_programs_on_cores_that_the_loader_does_not_want_do_not_count() -> None:
    found = findings(replace(FEW, totals=OTHERS_RUN | {"other_cores": 200.0}))
    assert found["too-few-workers"].gain is not None


def test_workers_that_sleep_are_advised_beside_others_that_have_the_cores_for_what_little_they_compute() -> None:
    sleeps = replace(QUEUED, queued=6 * MS, totals=OTHERS_RUN)
    found = findings(sleeps)
    assert "machine-busy" not in found
    assert {"slow-read", "too-few-workers"} <= set(found)


# -- what is certain enough to be advised ------------------------------------------------------------------------------


def test_a_few_batches_are_too_few_to_predict_from() -> None:
    for batches in (3, 11):
        diagnosis = diagnose(recording_of(replace(FEW, batches=batches)))
        assert [one.gain for one in diagnosis.findings if one.gain is not None] == []
        assert diagnosis.summary.endswith(f"; {batches} batches are too few to predict what would help.")
    assert "too-few-workers" in findings(replace(FEW, batches=12))


@pytest.mark.parametrize(("name", "loop"), EVERY.items(), ids=list(EVERY))
def test_every_gain_lies_in_its_interval_which_does_not_hold_1(name: str, loop: Loop) -> None:
    for one in diagnose(recording_of(loop)).findings:
        if one.gain is not None and one.gain >= 1.05:
            assert one.interval is not None
            low, high = one.interval
            assert 1.0 < low <= one.gain <= high


def test_a_gain_that_rests_on_a_single_batch_is_not_advised() -> None:
    load = np.full(40, 10 * MS)
    load[25] = 150 * MS
    once = Loop(load=load, loop=6 * MS, workers=4, batches=40)
    often = replace(once, load=np.tile(load, 8), batches=320)
    assert "stragglers" in findings(often)
    assert "stragglers" not in findings(once)


def test_waiting_that_workers_do_at_the_same_time_is_not_moved_into_the_main_process() -> None:
    """However long the workers took to start, which they do once."""
    sleeps = Loop(load=8 * MS, load_cpu=0.2 * MS, workers=2, batches=20, start=0.4, setting=TWO_CORES)
    assert "workers-cost-more" not in findings(sleeps)
    one = replace(sleeps, workers=1, loop=1 * MS)
    assert "workers-cost-more" not in findings(one)


def test_the_same_recording_has_the_same_diagnosis() -> None:
    recording = made_up.with_workers(300, 2, seed=4)
    assert diagnose(recording) == diagnose(recording)
