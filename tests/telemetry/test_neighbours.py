"""What other processes take of the cores is told apart from what this one takes, and its children."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.telemetry import neighbours
from headrace.telemetry.neighbours import Neighbours, core_seconds
from tests.telemetry.busy_machine import busy_cores, output_of

LOADS = """
import json
import time

import headrace


class Busy:
    def __len__(self):
        return 240

    def __getitem__(self, key):
        ends = time.thread_time() + 0.003
        while time.thread_time() < ends:
            pass
        return key


diagnoses = []
for workers in (0, 2):
    loader = headrace.DataLoader(Busy(), 16, num_workers=workers)
    for batch in loader:
        pass
    diagnoses.append(loader.diagnose().as_json())
print(json.dumps(diagnoses))
"""


def spin(seconds: float) -> None:
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        pass


def test_own_work_and_that_of_children_counts_as_own() -> None:
    before = core_seconds()
    spin(0.2)
    child = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", child], check=True)
    after = core_seconds()
    assert before is not None and after is not None
    assert after.own - before.own >= 0.45  # counted in ticks of 10 ms
    assert after.busy - before.busy >= 0.4


def test_looks_too_soon_after_each_other_are_left_out() -> None:
    seen = Neighbours()
    seen.begin()
    seen.look()
    assert seen.totals() == {}


def test_a_pause_between_epochs_does_not_count() -> None:
    seen = Neighbours()
    seen.begin()
    seen._at -= 1000.0  # as if the last look was long ago
    seen._due = 0.0
    seen.begin()
    seen._due = 0.0
    seen.look()
    assert 0.0 < seen.seconds < 500.0


def test_a_machine_that_does_not_tell_is_not_called_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "core_seconds", lambda: None)
    seen = Neighbours()
    seen.begin()
    seen._due = 0.0
    seen.look()
    assert seen.totals() == {}


@pytest.mark.thorough
def test_a_loop_between_busy_processes_is_told_so_and_gets_no_advice_that_rests_on_cores(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADS)
    with busy_cores():
        diagnoses = json.loads(output_of(script))
    for diagnosis in diagnoses:
        names = [finding["name"] for finding in diagnosis["findings"]]
        assert names[0] == "machine-busy"
        assert diagnosis["limit"] == "machine"
        assert "other processes took" in diagnosis["summary"]
        assert not {"slow-read", "too-few-workers", "workers-cost-more", "too-many-workers", "slow-start"} & set(names)
        assert [finding["gain"] for finding in diagnosis["findings"]] == [None] * len(names)
