"""What copying to a device costs: the report says whether anything is to be gained."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.data import TensorDataset

import headrace
from headrace.observe.chrome_trace import trace_events
from headrace.observe.diagnosis.device import copies_line
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Finding
from headrace.observe.report import report
from headrace.observe.stats import stats_of
from headrace.telemetry.device_copies import DeviceCopies
from headrace.telemetry.recording import Recording
from headrace.testing import SimulatedAccelerator
from tests.observe.diagnosis.steady import MS, Loop, recording_of

PIXELS = 64 * 3 * 224 * 224
COPIES = DeviceCopies(
    "cuda:0", batches=100, bytes=100 * 4 * PIXELS, image_bytes=100 * 4 * PIXELS, timed=100,
    timed_bytes=100 * 4 * PIXELS, seconds=100 * 0.70 * MS, recent=((10.0, 10.0007, 4 * PIXELS),),
)  # fmt: skip
"""64 float images of 224 pixels, over a bus of 55 GB/s."""


def recorded(loop_seconds: float, **figures: Any) -> Recording:
    loop = Loop(load=2 * MS, loop=loop_seconds, workers=4, recording={"copies": replace(COPIES, **figures)})
    return recording_of(loop)


def findings(recording: Recording) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(recording).findings}


def test_nothing_to_gain_is_an_answer() -> None:
    recording = recorded(230 * MS)
    line = copies_line(recording)
    assert line.startswith("device: cuda:0, 38.5 MB a batch in 700 µs (55.1 GB/s): copying is 0.3% of a step")
    assert line.endswith("nothing to gain")
    assert "copies" not in findings(recording)


def test_images_as_bytes_are_advised_where_the_bus_takes_a_part_of_the_step() -> None:
    finding = findings(recorded(3 * MS))["copies"]
    assert finding.stage == "delivery"
    assert "goes on beside it" in finding.sentence
    assert "as uint8 and cast there (device_transform=): 4.00 times less" in finding.advice
    assert "the bus is what the loop waits for" in findings(recorded(0.75 * MS))["copies"].sentence


def test_what_is_no_image_has_no_smaller_form() -> None:
    assert findings(recorded(3 * MS, image_bytes=0))["copies"].advice == ""


def test_without_times_of_the_device_only_the_bytes_are_told() -> None:
    recording = recorded(3 * MS, timed=0, timed_bytes=0, seconds=0.0)
    assert copies_line(recording) == "device: cuda:0, 38.5 MB a batch"
    assert "copies" not in findings(recording)


def test_a_recording_keeps_the_copies() -> None:
    recording = recorded(3 * MS)
    again = Recording.from_json(json.loads(json.dumps(recording.as_json())))
    assert again.copies == COPIES
    copies = stats_of(again).as_json()["copies"]
    assert (copies["batches"], copies["recent"]) == (100, [])


def test_a_trace_shows_copies_on_a_thread_of_their_own() -> None:
    events = trace_events([recorded(3 * MS)], base=0)["traceEvents"]
    (name,) = [event for event in events if event["ph"] == "M" and "copies" in str(event["args"].get("name"))]
    (copy,) = [event for event in events if event["ph"] == "X" and event["name"] == "copy"]
    assert name["args"]["name"] == "copies to cuda:0"
    assert copy["tid"] == name["tid"]
    assert copy["dur"] == pytest.approx(700)
    assert copy["args"] == {"bytes": 4 * PIXELS}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_tells_what_it_copied(num_workers: int) -> None:
    dataset = TensorDataset(torch.rand(320, 3, 16, 16), torch.arange(320))
    with SimulatedAccelerator(4) as accelerator:
        loader = headrace.DataLoader(dataset, 8, num_workers=num_workers, device="cuda")
        for _ in loader:
            accelerator.synchronize()
        copies = loader.stats.copies
        assert copies is not None
        assert (copies.device, copies.batches) == ("cuda", 40)
        assert copies.timed >= 39
        assert copies.rate > 0
        assert copies.image_bytes == 320 * 3 * 16 * 16 * 4
        begin, end, nbytes = loader.recording.copies.recent[-1]
        assert loader.recording.first_seen < begin <= end
        assert nbytes >= 8 * 3 * 16 * 16 * 4
        console = Console(width=200, record=True)
        console.print(report(loader.recording, diagnose(loader.recording)))
        assert "device: cuda, 24." in console.export_text()
