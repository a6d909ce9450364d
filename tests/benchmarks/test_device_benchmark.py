"""The benchmark of a GPU goes its whole way on a simulated one, and keeps what it has whatever happens."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.harness.figures import Budget, Figures, Record, in_turn_within
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.page import ROOT

from benchmarks import device
from tests import programs

TRACEBACK = "Traceback (most recent call last)"


def entries_in(text: str) -> list[dict[str, Any]]:
    """What was printed as JSON, without the line about the machine."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [entry for entry in found if "experiment" in entry]


@pytest.mark.thorough
def test_every_experiment_goes_its_whole_way() -> None:
    done = programs.run(["-m", "benchmarks.device", "--simulate"], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert TRACEBACK not in done.stdout

    told: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries_in(done.stdout):
        assert entry["simulated"] is True
        told[entry["experiment"]].append(entry)
    assert sorted(told) == list(range(12))

    figures = [entry for entry in entries_in(done.stdout) if "value" in entry]
    assert all(entry["met"] is None for entry in figures)
    wrong = [entry["value"] for entry in figures if "wrong" in entry["name"] and entry["goal"] == "0"]
    assert len(wrong) >= 8
    assert set(wrong) == {0}
    planted = [entry["value"] for entry in figures if "without waiting: wrong" in entry["name"]]
    assert planted[0] > 0


@pytest.mark.thorough
def test_the_script_runs_as_a_plain_file() -> None:
    done = programs.run([ROOT / "benchmarks" / "device.py", "--simulate", "--only", 0, 3], cwd=ROOT.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert {entry["experiment"] for entry in entries_in(done.stdout)} == {0, 3}


def test_simulated_figures_are_written_nowhere(tmp_path: Path) -> None:
    out = tmp_path / "device.json"
    done = programs.run(["-m", "benchmarks.device", "--simulate", "--out", out], cwd=ROOT)
    assert done.returncode == 2
    assert "--out does not go with --simulate" in done.stderr
    assert not out.exists()


TORCHVISION = """
import torch

def encode_jpeg(picture, quality):
    assert picture.dtype is torch.uint8 and picture.dim() == 3
    return picture.flatten()

def decode_jpeg(files, device="cpu"):
    return [file.to(device, copy=True) for file in files]
"""


@pytest.mark.thorough
def test_decoding_goes_its_whole_way_where_torchvision_is(tmp_path: Path) -> None:
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "io.py").write_text(TORCHVISION)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = programs.run(["-m", "benchmarks.device", "--simulate", "--only", 11], cwd=ROOT, env=environment, fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    entries = entries_in(done.stdout)
    assert all("value" in entry for entry in entries)
    assert any("on the device, 4 threads" in entry["name"] for entry in entries)


def test_whoever_interrupts_it_has_the_figures_so_far() -> None:
    with programs.Program(["-m", "benchmarks.device", "--simulate"], cwd=ROOT) as program:
        while '"value"' not in program.read_line():
            pass
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate()
    assert program.returncode == 130
    assert said == "interrupted: the figures so far are kept\n"


# -- experiments that go wrong -----------------------------------------------------------------------------------------


def good(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    figures.add("half of it", 0.5, "s", goal="< 1", met=True)


def failing(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    figures.add("before", 1)
    raise ValueError("planted")


def killed(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.pause()


def slow(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    signal.pause()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, **wrong: Any) -> None:
    """Runs some experiments, of half a second each, and a good one behind them."""
    experiments = [
        device.Experiment(number, name, 0.5, measure) for number, (name, measure) in enumerate(wrong.items())
    ]
    monkeypatch.setattr(device, "EXPERIMENTS", [*experiments, device.Experiment(9, "good", 0.5, good)])
    assert device.main(["--simulate", *arguments]) == bool(wrong)


def test_an_experiment_that_fails_is_told_with_its_place_and_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, failing=failing, killed=killed)
    before, failed, dead, last = entries_in(capfd.readouterr().out)
    assert (before["name"], before["value"]) == ("before", 1)
    assert failed["failed"].startswith(TRACEBACK)
    assert "in failing\n" in failed["failed"]
    assert failed["failed"].endswith("ValueError: planted\n")
    assert dead["failed"] == f"its process ended with status {-signal.SIGKILL}"
    assert (last["name"], last["value"], last["goal"]) == ("half of it", 0.5, "< 1")


@pytest.mark.thorough
def test_an_experiment_whose_time_is_over_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "STARTING", 2.0)
    run(monkeypatch, slow=slow, hanging=hanging)
    said = capfd.readouterr()
    over, hung, last = entries_in(said.out)
    assert "in slow\n" in over["failed"] and "TimeIsUp" in over["failed"]
    assert hung["failed"] == "its process did not end in time, and was killed"
    assert "in hanging\n" in said.err
    assert last["name"] == "half of it"


def test_what_does_not_fit_any_more_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--seconds", "0.1")
    (skipped,) = entries_in(capfd.readouterr().out)
    assert (skipped["name"], skipped["skipped"]) == ("good", "it takes 0.5 s, and 0 s are left")


def test_the_file_has_all_figures_so_far_at_any_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "device.json"
    record = Record(out, {"name": "A card"})
    entry = {"experiment": 1, "name": "a rate", "value": 1.0, "unit": "GB/s", "goal": ">= 2", "met": False}
    for count in (1, 2):
        record.take({**entry, "simulated": False})
        found = json.loads(out.read_text())
        assert (len(found["figures"]), found["complete"], found["machine"]) == (count, False, {"name": "A card"})
    record.finish()
    assert json.loads(out.read_text())["complete"]
    assert "  1  a rate: 1.00 GB/s  (goal: >= 2)  NOT MET\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]


def test_rounds_end_with_the_budget_but_one_is_whole() -> None:
    over = Budget(0)
    assert in_turn_within({"a": lambda: 1, "b": lambda: 2}, 5, over) == {"a": [1], "b": [2]}
    assert in_turn_within({"a": time.monotonic}, 3, Budget(100)).keys() == {"a"}
