"""A report says who waits for whom, what to change, and where the time goes: in 80 columns, plain in files."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.report import report
from headrace.telemetry.recording import MAIN, MEMORY, Recording, totals_of
from headrace.telemetry.remote_reads import RemoteReads

from .test_stats import batches_of_two_workers

FINDINGS = (
    Finding(
        "too-few-workers",
        "decode",
        "2 workers take 480 ms for a batch, the loop 120 ms, and the machine has 14 cores [idle] " + "most of it " * 9,
        "num_workers=8",
        2.61,
        {"num_workers": 8},
    ),
    Finding("small-batches", "delivery", "A batch is 3 kB.", "batch_size=256", 1.04),
    Finding("one-seed", "random", "All workers draw the same numbers.", "draw from [headrace.rng()]", 1.0),
    Finding("as-it-is", "training", "The loop does not wait.", ""),
)


def recording(label: str = "train.py:31") -> Recording:
    rows = batches_of_two_workers(200)
    rows["worker"][::50] = MAIN
    memory = np.array([(1.0, 2_400_000_000, 512_000_000)], MEMORY)
    return Recording(label, batches=rows, totals=totals_of(rows), memory=memory, bad_samples=12, restarts=1)


def printed(found: Recording, diagnosis: Diagnosis, file: io.StringIO | None = None, **options: object) -> str:
    file = file or io.StringIO()
    Console(file=file, **options).print(report(found, diagnosis))  # type: ignore[arg-type]
    return file.getvalue()


def test_what_came_over_a_network_has_a_line() -> None:
    assert "network" not in printed(recording(), diagnosis(), width=120)
    remote = RemoteReads(
        requests=1200, bytes=24_000_000, waited=2.0, waited_bytes=20_000_000, waited_in_flight=25.0, retries=3
    )
    text = printed(replace(recording(), remote=remote), diagnosis(), width=200)
    assert (
        "network: 24.0 MB in 1,200 requests, 10.0 MB/s while it was waited for, 12.5 requests in flight, 3 made again"
        in text
    )
    cached = replace(remote, cache="limited", cached_bytes=24_000_000)
    assert "50% of the bytes from the cache" in printed(replace(recording(), remote=cached), diagnosis(), width=200)


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(
        "train.py:31", "The loop waits [63 %] of its time for batches.", 0.63, "decode", 2.7, 33.0, findings
    )


def test_findings_are_numbered_and_say_what_to_change_and_what_it_gains() -> None:
    text = printed(recording(), diagnosis(*FINDINGS), width=80)
    words = " ".join(text.split())
    assert words.startswith(
        "train.py:31: The loop waits [63 %] of its time for batches. 1. too-few-workers (decode): 2 "
    )
    assert "[idle]" in words
    assert "num_workers=8 (about 2.6 times as fast) 2. small-batches (delivery): A batch is 3 kB." in words
    assert (
        "batch_size=256 (about 4% faster) 3. one-seed (random): All workers draw the same numbers. draw from" in words
    )
    assert "[headrace.rng()] 4. as-it-is (training): The loop does not wait. a batch" in words


def test_stages_that_were_measured_and_all_workers_have_a_line() -> None:
    text = printed(recording(), diagnosis(), width=80)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "load 500 ms 500 ms 500 ms 500 ms 1 min 40 s" in lines
    assert "loop 2.00 s 2.00 s 2.00 s 2.00 s 6 min 38 s" in lines
    assert not any(line.startswith(("pin", "open")) for line in lines)
    assert "main process: busy 1%, 4 batches, 1.00 s each" in lines
    assert "worker 1: busy 20%, 100 batches, 1.00 s each" in lines
    assert "memory: main 2.40 GB, workers 512 MB" in lines
    assert "12 bad samples, 1 worker replaced" in lines


@pytest.mark.parametrize("findings", [(), FINDINGS])
def test_a_report_fits_into_80_columns(findings: tuple[Finding, ...]) -> None:
    text = printed(recording(), diagnosis(*findings), width=80, force_terminal=True, color_system=None)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_a_report_in_a_file_is_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "report.txt"
    with path.open("w") as file:
        Console(file=file).print(report(recording(), diagnosis(*FINDINGS)))
    text = path.read_text()
    assert "\x1b" not in text and "too-few-workers" in text


def test_of_an_empty_recording_there_is_the_summary_alone() -> None:
    assert (
        printed(Recording(), diagnosis(), width=80) == "train.py:31: The loop waits [63 %] of its time for batches.\n"
    )
