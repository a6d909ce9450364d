"""`headrace doctor --plan`: tables, JSON, every cut measured; caches of the script are not built."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

SCRIPT = """
import time
import numpy as np
import headrace
from headrace import Staged

source = [{"id": number, "x": np.arange(8.0) + number} for number in range(48)]


def dear(one):
    time.sleep(0.002)
    return {**one, "x": one["x"] * 2}


@headrace.step(random=True)
def noisy(one):
    return {**one, "x": one["x"] + headrace.rng().random()}


train = Staged(source).map(dear).cache("cache-of-train").map(noisy)
twice = Staged(source).map(dear).cache("one").map(dict).cache("two", format="nonsense")
nothing = Staged([]).map(dear)
plain = Staged(source)
number = 3
inside = type("Space", (), {"train": train})


def made():
    return Staged(source, dear, noisy, cache="cache-of-made")


def broken():
    raise ZeroDivisionError("in the script")


def wrong():
    return number


def failing():
    def fails(one):
        raise ZeroDivisionError("in the step")

    return Staged(source, fails, cache="memory")


def needs(argument):
    return train


if __name__ == "__main__":
    raise AssertionError("it ran as a program")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> Iterator[Command]:
    """Runs the command in a folder with a script; checks that it leaves nothing behind."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "pipeline_of_test.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "200")
    before = set(sys.modules)
    yield functools.partial(command, "doctor")
    for name in set(sys.modules) - before:
        if name.endswith("_of_test"):
            del sys.modules[name]
    left = [one.name for folder in ("here", "temporary") for one in (tmp_path / folder).iterdir()]
    assert [name for name in left if not name.endswith("_of_test.py")] == []


def test_the_plan_of_a_script_is_printed(run: Command) -> None:
    status, out, _ = run("--plan", "pipeline_of_test.py:train")
    assert status == 0
    for words in ("Measured on 48 of 48 samples", "Predicted for each cache point", "nothing kept", "1 dear",
                  "2 noisy, random",
                  "not possible", "step 2 (noisy) is random", "Cache after step 1 (dear)"):  # fmt: skip
        assert words in out


@pytest.mark.parametrize(
    "target", ["pipeline_of_test.py:made", "pipeline_of_test:train", "./pipeline_of_test.py:inside.train"]
)
def test_the_json_has_all_figures(run: Command, target: str) -> None:
    status, out, error = run("--plan", target, "--json", "--batch-size", "8", "--epochs", "3")
    figures = json.loads(out)
    assert (status, error) == (0, "")
    assert [one["name"].split(",")[0] for one in figures["steps"][1:]] == ["dear", "noisy"]
    assert figures["recommended"] == 1
    assert (figures["samples"], figures["looked_at"], figures["epochs"]) == (48, 48, 3)
    assert "measured" not in figures
    refused = [one["refused"] for one in figures["cuts"]]
    assert refused[:2] == [None, None]
    assert "noisy" in refused[2]


@pytest.mark.thorough
def test_every_cut_is_measured_when_asked(run: Command) -> None:
    words = ["--run", "--workers", "0,2", "--batches", "3", "--batch-size", "8"]
    status, out, _ = run("--plan", "pipeline_of_test.py:train", *words, "--json")
    cuts = json.loads(out)["measured"]
    assert status == 0
    assert [(cut["cut"], cut["refused"] is None) for cut in cuts] == [(0, True), (1, True), (2, False)]
    assert "random" in cuts[2]["refused"]
    assert (cuts[0]["build"], cuts[0]["bytes"]) == (0, 0)
    assert cuts[1]["build"] > 0.002 * 48 / 8
    assert cuts[1]["bytes"] > 48 * 64
    for cut in cuts[:2]:
        assert [(one["workers"], one["batches"], one["samples"]) for one in cut["epochs"]] == [(0, 3, 24), (2, 3, 24)]
        assert all(one["seconds"] > 0 and one["bytes"] > 1 << 20 for one in cut["epochs"])
    assert cuts[0]["epochs"][0]["seconds"] > 24 * 0.002


def test_the_table_of_measured_cuts_has_a_row_for_each(run: Command) -> None:
    status, out, _ = run("--plan", "pipeline_of_test.py:plain", "--run", "--workers", "0")
    assert status == 0
    measured = out[out.index("\nMeasured\n") if "\nMeasured\n" in out else out.rindex("Measured") :]
    assert "epoch, 0 workers" in measured
    assert "peak memory" in measured
    assert "nothing kept" in measured
    assert "Keep nothing" in out


def test_caches_behind_each_other_are_one_pipeline(run: Command) -> None:
    status, out, _ = run("--plan", "pipeline_of_test.py:twice", "--json")
    assert status == 0
    assert [one["name"] for one in json.loads(out)["steps"][1:]] == ["dear", "dict"]


def test_a_cache_that_is_out_of_date_does_not_matter(run: Command, tmp_path: Path) -> None:
    cache = tmp_path / "here" / "cache-of-train"
    cache.mkdir()
    (cache / "staged.json").write_text("{")
    assert run("--plan", "pipeline_of_test.py:train")[0] == 0
    assert (cache / "staged.json").read_text() == "{"
    (cache / "staged.json").unlink()
    cache.rmdir()


def test_options_are_explained(run: Command) -> None:
    status, out, _ = run("--help")
    assert status == 0
    for word in (
        "--plan",
        "SCRIPT.py:NAME",
        "--run",
        "--json",
        "--workers",
        "--batches",
        "--epochs",
        "--batch-size",
        "Example:",
    ):
        assert word in out


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such name": (("pipeline_of_test.py:trian",), 2, "no 'trian'"),
    "names that are there": (("pipeline_of_test.py:trian",), 2, "train, twice"),
    "no such script": (("nowhere.py:train",), 2, "no such script"),
    "no such module": (("nowhere:train",), 2, "no such module"),
    "no such package": (("nowhere.inner:train",), 2, "no such module"),
    "no name": (("pipeline_of_test.py",), 2, "names no dataset"),
    "an empty name": (("pipeline_of_test.py:",), 2, "names no dataset"),
    "an empty target": (("",), 2, "names no dataset"),
    "another type": (("pipeline_of_test.py:number",), 2, "no staged dataset"),
    "a function of another type": (("pipeline_of_test.py:wrong",), 2, "no staged dataset"),
    "a function that needs something": (("pipeline_of_test.py:needs",), 2, "argument"),
    "empty data": (("pipeline_of_test.py:nothing",), 2, "empty dataset"),
    "no number": (("pipeline_of_test.py:train", "--run", "--workers", "two"), 2, "--workers"),
    "a negative number": (("pipeline_of_test.py:train", "--run", "--workers", "-1"), 2, "--workers"),
    "no workers": (("pipeline_of_test.py:train", "--run", "--workers", ""), 2, "--workers"),
    "no batches": (("pipeline_of_test.py:train", "--run", "--batches", "0"), 2, "--batches"),
    "no epochs": (("pipeline_of_test.py:train", "--epochs", "0"), 2, "--epochs"),
    "no batch": (("pipeline_of_test.py:train", "--batch-size", "0"), 2, "--batch-size"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_without_a_traceback(run: Command, wrong: str) -> None:
    arguments, expected, words = WRONG[wrong]
    status, out, error = run("--plan", *arguments)
    assert status == expected
    assert words in error
    assert out == ""


def test_a_target_must_be_given(run: Command) -> None:
    status, _, error = run()
    assert status == 2
    assert "--plan" in error


def raised(run: Command, target: str) -> Any:
    with pytest.raises(Exception) as caught:
        run("--plan", target)
    return caught.value


def test_what_the_script_raises_comes_with_its_place(run: Command, tmp_path: Path) -> None:
    (tmp_path / "here" / "bad_of_test.py").write_text("x = 1 / 0\n")
    (tmp_path / "here" / "worse_of_test.py").write_text("x = (\n")
    (tmp_path / "here" / "importing_of_test.py").write_text("import nowhere_at_all\n")
    assert isinstance(raised(run, "bad_of_test.py:x"), ZeroDivisionError)
    assert isinstance(raised(run, "worse_of_test.py:x"), SyntaxError)
    assert "nowhere_at_all" in str(raised(run, "importing_of_test.py:x"))
    assert isinstance(raised(run, "pipeline_of_test.py:broken"), ZeroDivisionError)


def test_what_a_step_raises_names_the_step_and_the_sample(run: Command) -> None:
    error = raised(run, "pipeline_of_test.py:failing")
    assert isinstance(error, ZeroDivisionError)
    assert "'fails'" in error.__notes__[0]
    assert "sample 0" in error.__notes__[0]


def test_a_module_that_lacks_another_says_which(run: Command, tmp_path: Path) -> None:
    (tmp_path / "here" / "importing_of_test.py").write_text("import nowhere_at_all\n")
    status, _, error = run("--plan", "importing_of_test:x")
    assert status == 2
    assert "nowhere_at_all" in error
