"""`headrace compare`: a script with both loaders in turn, one table, and whether the batches are the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.compare import QUANTITIES, ratio_of
from tests import programs

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index + torch.rand(4)

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    kept = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(2):
        for batch in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2):
            pass
        for batch in kept:
            pass
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def compare(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["-m", "headrace", "compare", *map(str, arguments)]
    return programs.run(command, cwd=folder, timeout=100)


@pytest.mark.thorough
def test_a_script_without_seeds_gets_the_same_batches_from_both_loaders(script: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = compare("--rounds", 2, "--json", figures, script, "--epochs", "3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "All runs got the same batches in the same order" in done.stdout
    for quantity in QUANTITIES:
        assert quantity.name in done.stdout
    told = json.loads(figures.read_text())
    digests = told["digests"]["torch"] + told["digests"]["headrace"]
    assert len(digests) == 4
    assert len(digests[0]) == 3
    assert "train.py --epochs 3: headrace's loader, 2 of 2: " in done.stdout
    assert all(digest == digests[0] and None not in digest for digest in digests)
    assert min(told["figures"]["samples/s"]["torch"] + told["figures"]["CPU time (s)"]["headrace"]) > 0


def test_the_loader_whose_batches_differ_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "list(DataLoader(range(8)))\n"
        "list(DataLoader([hasattr(DataLoader, 'state_dict')]))\n"
    )
    done = compare("--rounds", 1, file, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The two loaders gave different batches, from train.py:4: see https://" in done.stdout


@pytest.mark.thorough
def test_other_batches_are_told(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import os, torch\nfrom torch.utils.data import DataLoader\n"
        "list(DataLoader(torch.frombuffer(bytearray(os.urandom(64)), dtype=torch.uint8), batch_size=8))\n"
    )
    done = compare("--rounds", 2, file, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "get other batches each time, also with torch's loader" in done.stdout


@pytest.mark.thorough
def test_the_error_and_the_status_of_the_script_are_passed_on(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import sys\nprint('no data', file=sys.stderr)\nsys.exit(3)\n")
    done = compare(file, folder=tmp_path)
    assert done.returncode == 3
    assert "no data" in done.stdout
    assert "With torch's loader" in done.stdout


@pytest.mark.thorough
def test_a_script_without_a_loader_is_nothing_to_compare(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print('hello')\n")
    done = compare(file, folder=tmp_path)
    assert done.returncode == 1
    assert "did not get a batch from any DataLoader" in done.stdout


def test_no_script_of_this_name_is_an_error(tmp_path: Path) -> None:
    done = compare("nowhere.py", folder=tmp_path)
    assert done.returncode == 2
    assert "no such script" in done.stderr


@pytest.mark.parametrize(("name", "expected"), [("time (s)", 2.0), ("samples/s", 0.5)])
def test_a_ratio_above_one_is_better(name: str, expected: float) -> None:
    (quantity,) = [quantity for quantity in QUANTITIES if quantity.name == name]
    assert ratio_of(quantity, [8.0, 4.0, 3.0], [2.0, 2.0, 9.0]) == expected


@pytest.mark.thorough
def test_ctrl_c_ends_the_script_too(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    mark = tmp_path / "pid"
    file.write_text(
        "import os, pathlib, threading\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\nprint('begun')\nthreading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "headrace", "compare", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(mark, process)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert not Path("/proc", mark.read_text()).exists()


def wait_for(mark: Path, process: subprocess.Popen[str]) -> None:
    """Waits until a file holds something, or the process has ended."""
    while process.poll() is None and not (mark.exists() and mark.read_text()):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
