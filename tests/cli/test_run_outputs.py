"""What `headrace run` leaves beside the script's own output: a page, a trace, a shorter run, an ideal loader."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from headrace.telemetry.formatting import percent
from tests import programs
from tests.cli.conftest import Command

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 64
    def read_file(self, key):
        time.sleep(0.01)
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


def headrace(*arguments: object) -> programs.Ended:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return programs.run(["-m", "headrace", *arguments], env=environment)


Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, command: Command) -> Refused:
    """Runs the command in this process, which must end before any script runs; returns what it says."""
    monkeypatch.setenv("COLUMNS", "100")

    def running(*arguments: object, status: int = 2) -> str:
        ended, out, error = command(*arguments)
        assert (ended, out) == (status, "")
        return error

    return running


def test_a_page_and_a_trace_are_written(script: Path, tmp_path: Path) -> None:
    page, trace, figures = tmp_path / "page.html", tmp_path / "trace.json.gz", tmp_path / "figures.json"
    result = headrace("run", "--report", page, "--trace", trace, "--json", figures, script, 2)
    assert (result.returncode, result.stdout) == (0, "first keys [0, 8, 16, 24, 32, 40, 48, 56]\n"), result.stderr
    assert f"The whole picture: {page}" in result.stderr
    (command,) = (line.removeprefix("Next: ") for line in result.stderr.splitlines() if line.startswith("Next: "))
    assert command.startswith("headrace ") and command.endswith(f"{script} 2")
    assert f"<code>{command}</code>" in page.read_text()
    html = page.read_text()
    assert "train.py:14" in html and "http://" not in html
    # What it advises depends on the machine: beside other tests, it may say that the machine is busy.
    (diagnosis,) = json.loads(figures.read_text())["diagnoses"]
    assert diagnosis["summary"] in html
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    loads = [event for event in events if event["ph"] == "X" and event["name"] == "load"]
    assert len(loads) == 16


@pytest.mark.thorough
def test_torch_s_own_loader_has_a_page_too(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = headrace("run", "--plain", "--report", page, "--json", tmp_path / "figures.json", script, 1)
    assert result.returncode == 0, result.stderr
    (diagnosis,) = json.loads((tmp_path / "figures.json").read_text())["diagnoses"]
    assert diagnosis["wait_share"] > 0.5
    assert diagnosis["summary"] in page.read_text()


@pytest.mark.parametrize("option", ["--report", "--trace", "--json"])
def test_a_file_that_cannot_be_written_is_said_before_the_script_runs(
    script: Path, tmp_path: Path, option: str, refused: Refused
) -> None:
    inside = tmp_path / "file"
    inside.write_text("mine")
    places = {tmp_path / "nowhere" / "file": "no such folder", tmp_path: "a folder", inside / "file": "no such folder"}
    for place, found in places.items():
        assert found in refused("run", option, place, script, 1)
    assert inside.read_text() == "mine"


@pytest.mark.thorough
def test_a_disk_that_is_full_after_the_run_is_said(script: Path) -> None:
    result = headrace("run", "--json", "/dev/full", script, 1)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr and "Traceback" not in result.stderr


def test_nothing_is_written_of_a_script_without_a_loader(script: Path, tmp_path: Path) -> None:
    script.write_text("print('done')\n")
    result = headrace("run", "--report", tmp_path / "page.html", "--trace", tmp_path / "trace.json", script)
    assert (result.returncode, result.stdout) == (0, "done\n")
    said = " ".join(result.stderr.split())
    assert "page.html and " in said and "not written" in said
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.thorough
def test_an_ideal_loader_gives_the_first_batch_again(script: Path, tmp_path: Path) -> None:
    result = headrace("run", "--ideal", "--json", tmp_path / "ideal.json", script, 2)
    assert (result.returncode, result.stdout) == (0, "first keys [0]\n"), result.stderr
    (loader,) = json.loads((tmp_path / "ideal.json").read_text())["loaders"]
    assert (loader["epochs"], loader["batches"], loader["samples"]) == (2, 16, 128)
    assert "a loader that costs nothing" in result.stderr and "num_workers=" not in result.stderr


@pytest.mark.thorough
def test_the_checksum_of_the_batches_is_the_same_with_both_loaders(script: Path, tmp_path: Path) -> None:
    checksums = []
    for name, way in (("ours", []), ("plain", ["--plain"]), ("without", ["--num-workers", "0"])):
        result = headrace("run", *way, "--digest", "--json", tmp_path / name, script, 1)
        assert result.returncode == 0, result.stderr
        checksums.append(json.loads((tmp_path / name).read_text())["loaders"][0]["digest"])
    assert checksums[0]
    assert checksums == [checksums[0]] * 3


@pytest.mark.parametrize("option", [["--digest"], ["--live"], ["--report", "page.html"], ["--trace", "trace.json"]])
def test_a_batch_that_repeats_has_no_figures_of_its_loading(
    script: Path, option: list[str], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"found:    {option[0]}" in refused("run", "--ideal", *option, script, 1)
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.thorough
@pytest.mark.parametrize("way", [[], ["--plain"], ["--ideal"]], ids=["ours", "plain", "ideal"])
def test_a_script_can_be_ended_after_a_while(script: Path, way: list[str]) -> None:
    result = headrace("run", *way, "--seconds", "0.5", script, 1_000_000)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert "train.py was ended after 0.5 s" in result.stderr


@pytest.mark.thorough
def test_the_number_of_workers_can_be_left_to_the_loader(script: Path) -> None:
    script.write_text(script.read_text().replace(", num_workers=1", ""))
    result = headrace("run", "--num-workers", "auto", script, 1)
    assert (result.returncode, result.stdout) == (0, "first keys [0, 8, 16, 24, 32, 40, 48, 56]\n"), result.stderr


def test_a_number_of_workers_is_one_or_left_to_the_loader(script: Path, refused: Refused) -> None:
    assert "a whole number from 0 on, or auto" in refused("run", "--num-workers", "many", script, 1)


@pytest.mark.thorough
def test_a_doctor_looks_at_a_script(script: Path) -> None:
    result = headrace("doctor", "--ideal", "--seconds", 20, script, 12)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "first keys [0, 8, 16, 24, 32, 40, 48, 56]\n"
    assert "train.py:14: The loop waited" in result.stderr and "1. " in result.stderr
    assert "with an ideal loader" in result.stderr


@pytest.mark.thorough
def test_a_doctor_runs_a_script_once(script: Path, tmp_path: Path) -> None:
    script.write_text(script.read_text() + f'    open("{tmp_path / "runs"}", "a").write("run ")\n')
    assert headrace("doctor", "--seconds", 20, script, 1).returncode == 0
    assert (tmp_path / "runs").read_text() == "run "


@pytest.mark.thorough
def test_a_doctor_passes_on_what_a_script_raises(script: Path) -> None:
    result = headrace("doctor", script, "twice")
    assert result.returncode == 1
    assert "ValueError: invalid literal" in result.stderr and "ideal" not in result.stderr


@pytest.mark.thorough
def test_a_doctor_looks_at_data(tmp_path: Path) -> None:
    data = tmp_path / "table.csv"
    data.write_text("x,y\n" + "".join(f"{row},{row * 2}\n" for row in range(500)))
    result = headrace("doctor", "--seconds", 0.3, "--workers", "0,1", data)
    assert result.returncode == 0, result.stderr
    assert "500 samples" in result.stdout and "num_workers=" in result.stdout
    figures = headrace("doctor", "--seconds", 0.3, "--workers", "0,1", "--json", data)
    assert [run["workers"] for run in json.loads(figures.stdout)["runs"]] != []


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [([], "a training script, data, or --plan", 2), (["nowhere.py"], "no such script", 2), (["nowhere"], "nowhere", 1)],
    ids=["nothing", "no script", "no data"],
)
def test_a_doctor_says_what_it_wants(arguments: list[str], said: str, status: int, refused: Refused) -> None:
    assert said in refused("doctor", *arguments, status=status)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["DATA", "--seconds", "2"], "--seconds 2"),
        (["--report", "page.html", "DATA"], "--report"),
        (["--plain", "DATA"], "--plain"),
        (["--json", "SCRIPT"], "--json"),
        (["--workers", "2", "SCRIPT"], "--workers"),
        (["--seconds", "2", "--plan", "SCRIPT:data"], "--seconds"),
        (["--plan", "SCRIPT:data", "SCRIPT"], "train.py"),
    ],
)
def test_a_doctor_refuses_what_it_would_not_heed(
    script: Path, tmp_path: Path, arguments: list[str], said: str, refused: Refused
) -> None:
    (tmp_path / "table.csv").write_text("x,y\n1,2\n")
    places = {"DATA": str(tmp_path / "table.csv"), "SCRIPT": str(script), "SCRIPT:data": f"{script}:data"}
    error = refused("doctor", *(places.get(argument, argument) for argument in arguments))
    assert "this has no meaning for" in error and said in error


@pytest.mark.thorough
def test_a_doctor_looks_at_photos_of_several_sizes(tmp_path: Path) -> None:
    photos = tmp_path / "photos" / "cats"
    photos.mkdir(parents=True)
    for number in range(20):
        Image.new("RGB", (8 + number % 3, 8)).save(photos / f"{number}.png")
    result = headrace("doctor", "--seconds", 0.2, "--workers", "0,1", "--batch-size", 4, photos.parent)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    assert "differ in size" in result.stdout and "20 samples" in result.stdout


@pytest.mark.thorough
def test_each_of_several_loaders_of_one_line_has_a_row(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "def make(count):\n    return DataLoader(torch.arange(count), batch_size=4)\n"
        "one, two = make(8), make(12)\nprint(len(list(one)), len(list(two)))\n"
    )
    for way in ([], ["--plain"]):
        result = headrace("run", *way, "--json", tmp_path / "figures.json", script)
        assert (result.returncode, result.stdout) == (0, "2 3\n"), result.stderr
        figures = json.loads((tmp_path / "figures.json").read_text())
        expected = [("train.py:4", 2), ("train.py:4 #2", 3)]
        assert [(loader["label"], loader["batches"]) for loader in figures["loaders"]] == expected
        assert [diagnosis["label"] for diagnosis in figures["diagnoses"]] == [label for label, _ in expected]


WITH_A_LONG_BEGINNING = """
import time

import torch
from torch.utils.data import DataLoader


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, key):
        time.sleep(0.002)
        return torch.tensor(key)


if __name__ == "__main__":
    time.sleep(1.0)
    for batch in DataLoader(Slow(), batch_size=4):
        time.sleep(0.004)
    time.sleep(0.5)
"""


@pytest.mark.thorough
def test_every_output_of_a_run_has_the_same_share_of_waiting(tmp_path: Path) -> None:
    """It is one of the loop's time, whatever the script does before and after the loop."""
    path, report, page = tmp_path / "train.py", tmp_path / "report.json", tmp_path / "page.html"
    path.write_text(WITH_A_LONG_BEGINNING)
    result = headrace("run", "--json", report, "--report", page, path)
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    (loader,), (diagnosis,) = found["loaders"], found["diagnoses"]
    share = loader["waited"] / loader["looped"]
    assert loader["wait_share"] == diagnosis["wait_share"] == share
    assert found["seconds"] > loader["looped"] + 1.0
    words = " ".join(result.stderr.split())
    assert f"Its loops waited {loader['waited']:.1f} of {loader['looped']:.1f} s ({share:.0%}) for data." in words
    assert f"{loader['waited']:.2f} s ({share:.0%})" in words
    assert f"The loop waited {share:.0%} of the time for data" in diagnosis["summary"]
    assert f"<dt>of the time waiting</dt><dd>{percent(share)}</dd>" in page.read_text()
