"""`.cache(on="ray")`: the same cache as here, by steps that only this program has."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import Staged
from headrace.core.errors import UsageError
from headrace.data.staged import build
from tests import programs
from tests.data.convert.packing import files_in

pytestmark = pytest.mark.usefixtures("on_ray")

COUNT = 120
GATE = 53
"""A sample that is not looked at beforehand."""


class OwnError(Exception):
    """An error of the user's."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PIECE", 1 << 10)


def source() -> list[dict[str, Any]]:
    return [{"id": number, "x": np.arange(20 + number % 4, dtype=np.float32)} for number in range(COUNT)]


def doubled(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": one["x"] * 2, "text": "t" * one["id"]}


def drawn(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "drawn": headrace.rng().random()}


class Gate:
    """A step that says at one sample which process runs it, and waits; only the first time."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here"
        self.never = folder / "never"

    def fingerprint(self) -> str:
        return "gate"

    def __call__(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["id"] == GATE and self.never.exists():
            self.here.write_text(str(os.getpid()))  # a pipe: waits until it is read
            self.never.read_text()
        return one


def gated(folder: Path) -> Gate:
    for name in ("here", "never"):
        os.mkfifo(folder / name)
    return Gate(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["memmap", "parquet"])
def test_the_files_are_those_of_a_local_build(form: str, tmp_path: Path) -> None:
    here = Staged(source()).map(doubled).map(drawn)
    for name in ("local", "ray"):
        here.cache(tmp_path / name, format=form, freeze_random=True, on=name)  # type: ignore[arg-type]
    made = files_in(tmp_path / "ray")
    assert len(made) > 3
    assert made == files_in(tmp_path / "local")


@pytest.mark.thorough
def test_a_cache_in_memory_holds_the_same_samples() -> None:
    there = Staged(source()).map(doubled).cache("memory", on="ray")
    for one, other in zip(there, map(doubled, source()), strict=True):
        assert (one["id"], one["text"]) == (other["id"], other["text"])
        np.testing.assert_array_equal(one["x"], other["x"])


@pytest.mark.thorough
def test_an_error_of_a_step_is_the_users_own(tmp_path: Path) -> None:
    def failing(one: dict[str, Any]) -> dict[str, Any]:
        if one["id"] == GATE:
            raise OwnError("not this one")
        return one

    with pytest.raises(OwnError, match="not this one") as caught:
        Staged(source()).map(failing).cache(tmp_path / "cache", on="ray")
    assert f"sample {GATE}" in str(caught.value)


@pytest.mark.thorough
def test_a_piece_whose_process_is_killed_is_made_again(tmp_path: Path) -> None:
    gate = gated(tmp_path)
    killed = []

    def kill() -> None:
        number = int(gate.here.read_text())
        gate.never.unlink()
        os.kill(number, signal.SIGKILL)
        killed.append(number)

    thread = threading.Thread(target=kill)
    thread.start()
    Staged(source()).map(gate).map(doubled).cache(tmp_path / "ray", on="ray")
    thread.join()
    assert killed[0] != os.getpid()
    Staged(source()).map(gate).map(doubled).cache(tmp_path / "local")
    assert files_in(tmp_path / "ray") == files_in(tmp_path / "local")


SCRIPT = """
import numpy as np
import headrace

FACTOR = 3

def step_of_the_script(one):
    return {**one, "y": one["x"] * FACTOR}

if __name__ == "__main__":
    source = [{"x": np.arange(20, dtype=np.float32)} for _ in range(60)]
    data = headrace.Staged(source).map(step_of_the_script).cache("cache", on="ray")
    print(all((one["y"] == one["x"] * 3).all() for one in data))
"""


@pytest.mark.thorough
def test_steps_of_the_script_itself_run_on_ray(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = programs.run([script], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Staged"):
        Staged(source()).cache(tmp_path / "cache", on="slurm")  # type: ignore[arg-type]
