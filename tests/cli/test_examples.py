"""The examples do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import programs

EXAMPLES = Path(__file__).parents[2] / "examples"

ALONE = """
import runpy, sys
from headrace.telemetry import neighbours
neighbours.core_seconds = lambda: None
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a script as on a machine that does not tell what other processes take: else the advice is rightly about them."""


@pytest.mark.thorough
def test_a_loader_is_asked_and_its_advice_followed() -> None:
    run = programs.run(["-W", "ignore", "-c", ALONE, EXAMPLES / "observe.py"], fresh=True)
    assert run.returncode == 0, run.stderr
    assert re.search(r"observe.py:\d+: The loop waited \d+% of the time for data", run.stdout)
    assert (
        "Waiting (for storage, network or locks) is" in run.stdout
        and "Spectrograms.read_file (observe.py:" in run.stdout
    )
    advice = re.search(r"\{'num_workers': (\d+)\}: predicted \d+\.\d times as fast", run.stdout)
    assert advice is not None and int(advice[1]) > 1


@pytest.mark.thorough
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
    run = programs.run([EXAMPLES / script, *arguments])
    assert (run.returncode, run.stdout[-len(said) :]) == (0, said), run.stderr
