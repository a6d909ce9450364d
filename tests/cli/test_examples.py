"""The examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_loader_is_asked_and_its_advice_followed() -> None:
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "observe.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert (
        "Waiting (for storage, network or locks) is" in run.stdout
        and "Spectrograms.read_file (observe.py:" in run.stdout
    )
    advice = re.search(r"\{'num_workers': (\d+)\}: predicted \d+\.\d times as fast", run.stdout)
    assert advice is not None and int(advice[1]) > 1


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("resume.py", [], "120 steps straight, 37 + 83 with a stop\nthe networks are the same, bit for bit\n"),
        ("ranks.py", [], "2 ranks read 240 lines, then 3 ranks read 360\neach of the 600 lines came once\n"),
        ("survive.py", [], "without them: 493 samples, 0 bad ones\n"),
        ("stored.py", [], "20000 rows packed as memmap; sound: True\nthe same rows: True\ny = 3.0 x -1.0\n"),
        ("augment_images.py", [], "targets: box [55.0, 10.0, 75.0, 30.0], mask in columns 55 to 74\n"),
        pytest.param(
            "ranks.py", ["--before", "3", "--after", "1"], "each of the 600 lines came once\n", marks=pytest.mark.stress
        ),
    ],
)
def test_an_example_ends_well(script: str, arguments: list[str], said: str) -> None:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stdout[-len(said) :]) == (0, said), run.stderr
