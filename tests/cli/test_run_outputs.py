"""What `headrace run` leaves beside the script's own output: a page, a trace, a shorter run, an ideal loader."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 64
    def read_file(self, key):
        time.sleep(0.002)
        return torch.full((100,), float(key))
    def __getitem__(self, key): return self.read_file(key)

if __name__ == "__main__":
    loader = DataLoader(Slow(), batch_size=8, num_workers=1)
    seen = []
    for epoch in range(int(sys.argv[1])):
        for batch in loader:
            seen.append(int(batch[0, 0]))
            batch.zero_()
            time.sleep(0.004)
    print("first keys", sorted(set(seen)))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def headrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)


def test_a_page_and_a_trace_are_written(script: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json.gz"
    result = headrace("run", "--report", page, "--trace", trace, script, 2)
    assert (result.returncode, result.stdout) == (0, "first keys [0, 8, 16, 24, 32, 40, 48, 56]\n"), result.stderr
    assert f"The whole picture: {page}" in result.stderr
    html = page.read_text()
    assert "train.py:14" in html and "Waiting for storage" in html and "http://" not in html
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    loads = [event for event in events if event["ph"] == "X" and event["name"] == "load"]
    assert len(loads) == 16


def test_torch_s_own_loader_has_a_page_too(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = headrace("run", "--plain", "--report", page, "--json", tmp_path / "figures.json", script, 1)
    assert result.returncode == 0, result.stderr
    (diagnosis,) = json.loads((tmp_path / "figures.json").read_text())["diagnoses"]
    assert diagnosis["wait_share"] > 0.5
    assert diagnosis["summary"] in page.read_text()


@pytest.mark.parametrize("option", ["--report", "--trace", "--json"])
def test_a_file_that_cannot_be_written_is_said_before_the_script_runs(
    script: Path, tmp_path: Path, option: str
) -> None:
    for place, found in ((tmp_path / "nowhere" / "file", "no such folder"), (tmp_path, "a folder")):
        result = headrace("run", option, place, script, 1)
        assert (result.returncode, result.stdout) == (1, "")
        assert found in result.stderr and "Traceback" not in result.stderr


def test_an_ideal_loader_gives_the_first_batch_again(script: Path, tmp_path: Path) -> None:
    result = headrace("run", "--ideal", "--json", tmp_path / "ideal.json", script, 2)
    assert (result.returncode, result.stdout) == (0, "first keys [0]\n"), result.stderr
    (loader,) = json.loads((tmp_path / "ideal.json").read_text())["loaders"]
    assert (loader["epochs"], loader["batches"], loader["samples"]) == (2, 16, 128)


@pytest.mark.parametrize("way", [[], ["--plain"], ["--ideal"]], ids=["ours", "plain", "ideal"])
def test_a_script_can_be_ended_after_a_while(script: Path, way: list[str]) -> None:
    result = headrace("run", *way, "--seconds", "0.5", script, 1_000_000)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "Traceback" not in result.stderr


def test_the_number_of_workers_can_be_left_to_the_loader(script: Path) -> None:
    script.write_text(script.read_text().replace(", num_workers=1", ""))
    result = headrace("run", "--num-workers", "auto", script, 1)
    assert (result.returncode, result.stdout) == (0, "first keys [0, 8, 16, 24, 32, 40, 48, 56]\n"), result.stderr
    wrong = headrace("run", "--num-workers", "many", script, 1)
    assert wrong.returncode == 1 and "a whole number from 0 on, or auto" in wrong.stderr


def test_a_doctor_looks_at_a_script(script: Path) -> None:
    result = headrace("doctor", "--ideal", "--seconds", 20, script, 12)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "first keys [0, 8, 16, 24, 32, 40, 48, 56]\n"
    assert "train.py:14: Training waited" in result.stderr and "1. " in result.stderr
    assert "with an ideal loader" in result.stderr


def test_a_doctor_runs_a_script_once(script: Path, tmp_path: Path) -> None:
    script.write_text(script.read_text() + f'    open("{tmp_path / "runs"}", "a").write("run ")\n')
    assert headrace("doctor", "--seconds", 20, script, 1).returncode == 0
    assert (tmp_path / "runs").read_text() == "run "


def test_a_doctor_passes_on_what_a_script_raises(script: Path) -> None:
    result = headrace("doctor", script, "twice")
    assert result.returncode == 1
    assert "ValueError: invalid literal" in result.stderr and "ideal" not in result.stderr


def test_a_doctor_looks_at_data(tmp_path: Path) -> None:
    data = tmp_path / "table.csv"
    data.write_text("x,y\n" + "".join(f"{row},{row * 2}\n" for row in range(500)))
    result = headrace("doctor", "--seconds", 0.3, "--workers", "0,1", data)
    assert result.returncode == 0, result.stderr
    assert "500 samples" in result.stdout and "num_workers=" in result.stdout
    figures = headrace("doctor", "--seconds", 0.3, "--workers", "0,1", "--json", data)
    assert [run["workers"] for run in json.loads(figures.stdout)["runs"]] != []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "a training script, data, or --plan"), (["nowhere.py"], "no such script"), (["nowhere"], "nowhere")],
    ids=["nothing", "no script", "no data"],
)
def test_a_doctor_says_what_it_wants(arguments: list[str], said: str) -> None:
    result = headrace("doctor", *arguments)
    assert result.returncode == 1
    assert said in result.stderr and "Traceback" not in result.stderr
