"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
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


@pytest.mark.quick(script="train_vlm.py", workers=0)
@pytest.mark.parametrize(("documents", "workers"), [(600, 2), (300, 0)])
@pytest.mark.parametrize(
    ("script", "said", "most"),
    [
        # One that learns nothing has 4.1.
        ("pretrain_tokens.py", "each token came once\n", 2.8),
        # Without a look at the images, it is at least 2.
        ("train_vlm.py", "each of {} documents came once\n", 1.5),
    ],
)
def test_a_model_learns_from_packs(
    tmp_path: Path, script: str, said: str, most: float, documents: int, workers: int
) -> None:
    run = programs.run([EXAMPLES / script, "--documents", documents, "--workers", workers], cwd=tmp_path)
    said = said.format(documents)
    assert (run.returncode, run.stdout[-len(said) :]) == (0, said), run.stderr
    losses = re.search(r"; loss (\d\.\d+), at the end (\d\.\d+)\n", run.stdout)
    assert losses is not None
    assert float(losses[2]) < most < 4 < float(losses[1])


def test_own_tokens_are_read_and_nothing_is_written_beside_them(tmp_path: Path) -> None:
    lengths = np.array([3, 400, 0, 90, 700], np.int32)
    np.arange(lengths.sum(), dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.save(tmp_path / "lengths.npy", lengths)
    run = programs.run([EXAMPLES / "pretrain_tokens.py", "--data", ".", "--workers", "0"], cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("5 documents, 1,193 tokens, ")
    assert run.stdout.endswith("each token came once\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lengths.npy", "train.bin"]


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    if importlib.util.find_spec("transformers") is not None:
        pytest.skip("transformers is installed here")
    run = programs.run([EXAMPLES / "finetune_chat.py"])
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "this example needs transformers: pip install transformers jinja2\n"
