"""Pieces made by tasks of a Ray cluster: what a task answers, and what becomes of a piece whose process is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster import code
from headrace.cluster.connection import connect
from headrace.core.errors import ClusterError, DatasetError
from headrace.data.building import ray_pool
from headrace.data.building.ray_pool import RayPool, make_pieces_on_ray

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_ray")]


class OwnError(Exception):
    """An error of the user's, of a module that no other machine has."""


class Numbers:
    """A job that squares numbers. Its class reaches the tasks by value."""

    def __init__(self, folder: Path, shared: Path | None = None) -> None:
        self.folder = folder
        self.shared_folder = shared

    def begin(self) -> None:
        pass

    def make(self, piece: int) -> int:
        return piece * piece


class Killed(Numbers):
    """One of its pieces ends its process, `times` times."""

    times = 1

    def make(self, piece: int) -> int:
        if piece == 3:
            made = len(list(self.folder.iterdir()))
            if made < self.times:
                Path(self.folder, str(made)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().make(piece)


class AlwaysKilled(Killed):
    times = 100


class Failing(Numbers):
    def make(self, piece: int) -> int:
        raise OwnError("the third") if piece == 3 else OSError(28, "No space left on device", "here")


def results(job: Any, pieces: Any = range(6), at_once: int = 0) -> dict[int, int]:
    made: dict[int, int] = {}
    make_pieces_on_ray(job, pieces, at_once, place="a test", made=made.__setitem__)
    return made


SQUARES = {number: number * number for number in range(6)}


def test_all_pieces_are_made_once(tmp_path: Path) -> None:
    assert results(Numbers(tmp_path)) == SQUARES


def test_no_more_tasks_are_under_way_than_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    submit = RayPool._submit

    def submitting(self: RayPool, piece: int) -> None:
        submit(self, piece)
        seen.append(len(self._waiting))

    monkeypatch.setattr(RayPool, "_submit", submitting)
    assert results(Numbers(tmp_path), at_once=1) == SQUARES
    assert seen == [1] * 6
    seen.clear()
    assert results(Numbers(tmp_path)) == SQUARES
    assert max(seen) == 2  # the CPUs of the cluster


def test_a_piece_whose_process_is_killed_is_made_again(tmp_path: Path) -> None:
    assert results(Killed(tmp_path)) == SQUARES
    assert len(list(tmp_path.iterdir())) == 1


def test_a_piece_that_kills_each_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="piece 3 was lost 3 times") as caught:
        results(AlwaysKilled(tmp_path))
    assert "the work was interrupted" in str(caught.value)
    assert len(list(tmp_path.iterdir())) == ray_pool.TRIES


def test_an_exception_is_of_the_class_that_the_caller_knows(tmp_path: Path) -> None:
    with pytest.raises(OwnError, match="the third"):
        results(Failing(tmp_path), [3])


def test_an_error_of_the_disk_keeps_its_number_and_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        results(Failing(tmp_path), [1])
    assert (caught.value.errno, caught.value.filename) == (28, "here")


def test_a_machine_that_does_not_see_the_folder_is_named(tmp_path: Path) -> None:
    connect()
    pool = RayPool(Numbers(tmp_path), str(tmp_path / "elsewhere" / "seen-1"), "a test")
    with pytest.raises(DatasetError, match="does not see the folder") as caught:
        pool.run([0], 1, lambda piece, result: None)
    assert str(tmp_path / "elsewhere") in str(caught.value)
    assert "fix:      choose a target in a folder that all machines share" in str(caught.value)


def test_a_machine_with_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {**code.versions(), "torch": "1.0"}
    for module in (code, ray_pool):
        monkeypatch.setattr(module, "versions", lambda: ours)
    with pytest.raises(ClusterError, match="versions differ between machines") as caught:
        results(Numbers(tmp_path))
    assert "expected: torch 1.0" in str(caught.value)


def test_the_file_that_tasks_look_for_is_removed(tmp_path: Path) -> None:
    assert results(Numbers(tmp_path, shared=tmp_path)) == SQUARES
    assert list(tmp_path.iterdir()) == []
