"""Workers on other machines: the line to them is told from their cores."""

from __future__ import annotations

from dataclasses import replace

from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.recording import Recording
from tests.observe.diagnosis.steady import MS, Loop, recording_of

SLOW_LINE = Loop(load=5 * MS, loop=1 * MS, latency=60 * MS, workers=2, nbytes=38_000_000)
SLOW_WORKERS = Loop(load=60 * MS, loop=1 * MS, latency=5 * MS, workers=2, nbytes=38_000_000)
HOSTS = {0: "cpu1", 1: "cpu2"}


def findings(loop: Loop, hosts: dict[int, str] = HOSTS) -> dict[str, Finding]:
    given = replace(loop, recording={"hosts": hosts})
    return {finding.name: finding for finding in diagnose(recording_of(given)).findings}


def test_batches_that_are_long_on_their_way_mean_a_full_line() -> None:
    found = findings(SLOW_LINE)
    assert "5.00 ms to make and 60.0 ms on their way" in found["line-limits"].sentence
    assert "uint8" in found["line-limits"].advice
    assert "too-few-workers" not in found


def test_slow_workers_are_not_taken_for_a_full_line() -> None:
    found = findings(SLOW_WORKERS)
    assert "line-limits" not in found
    assert "too-few-workers" in found


def test_workers_of_this_machine_have_no_line() -> None:
    assert "line-limits" not in findings(SLOW_LINE, {})


def test_a_recording_keeps_the_names_of_machines() -> None:
    recording = recording_of(replace(SLOW_LINE, recording={"hosts": HOSTS}))
    assert Recording.from_json(recording.as_json()).hosts == HOSTS
