"""Sources that never end: one that is empty is nobody's fault, one that is behind says what would keep up."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.recording import Recording
from tests.observe.diagnosis.steady import MS, Loop, recording_of

LOOP = Loop(load=100 * MS, load_cpu=2 * MS, loop=10 * MS, workers=2)
"""Two workers wait for nearly all of a batch: the loop gets one every 50 ms, and works on it for 10 ms."""

QUICK = Loop(load=1 * MS, load_cpu=1 * MS, loop=50 * MS, workers=2)
"""The loader keeps up."""

LIVE = LiveReads(
    place="kafka://broker:9092/clicks", records=60_000, bytes=15_000_000, spans=2, partitions=4, lag=0, read_rate=300.0,
    waited=200 * 40 * MS,
)  # fmt: skip


def findings(live: LiveReads, loop: Loop = LOOP) -> dict[str, Finding]:
    given: Any = replace(loop, recording={"live": live})
    return {finding.name: finding for finding in diagnose(recording_of(given)).findings}


def test_an_empty_source_is_named_and_nothing_is_advised() -> None:
    found = findings(LIVE)
    finding = found["source-empty"]
    assert "kafka://broker:9092/clicks" in finding.sentence
    assert finding.advice == ""
    assert "too-few-workers" not in found


def test_a_source_that_is_behind_says_how_many_partitions_would_keep_up() -> None:
    found = findings(replace(LIVE, lag=2_100_000, lag_rate=150.0))
    finding = found["source-behind"]
    assert "2,100,000 records and falls back 150/s" in finding.sentence
    # Half as much again as is read by 4.
    assert "6 partitions" in finding.advice
    assert "too-few-workers" not in found


def test_training_that_is_slower_than_the_source_is_named() -> None:
    finding = findings(replace(LIVE, waited=0.0, lag=9_000, lag_rate=320.0), QUICK)["source-behind"]
    assert finding.stage == "training"
    assert "2.0 times as fast" in finding.sentence


def test_a_source_that_keeps_up_is_no_finding() -> None:
    for live in (replace(LIVE, lag=50, waited=0.0), replace(LIVE, lag=-1), replace(LIVE, lag=10_000, lag_rate=-50.0)):
        assert not {"source-empty", "source-behind"} & findings(live).keys()


def test_a_recording_keeps_what_was_read() -> None:
    recording = recording_of(replace(LOOP, recording={"live": LIVE}))
    assert Recording.from_json(json.loads(json.dumps(recording.as_json()))).live == LIVE
