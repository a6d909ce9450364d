"""Builds that are killed, interrupted, done by several processes at once, or run out of disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import DatasetError, FormatError, StaleCacheError
from headrace.data.staged import build, cache, staged
from headrace.data.staged.build import looked_at
from tests.data.staged import building
from tests.data.staged.building import COUNT, GATE, PIECE, Child, digest, expected, left_in, opened, times_run

Start = Callable[..., Child]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the processes that are started; undone behind each test."""
    for module, name in ((build, "plan_work"), (staged, "plan_work"), (build, "cores"), (build, "ALONE")):
        monkeypatch.setattr(module, name, getattr(module, name))
    building.small_pieces(1, crowd=False)


@pytest.fixture(autouse=True, scope="module")
def server() -> Iterator[None]:
    """A server of this module's own, which has imported all that its processes need."""
    forkserver._forkserver._stop()
    building.SERVER.set_forkserver_preload(["tests.data.staged.building"])
    yield
    forkserver._forkserver._stop()
    building.SERVER.set_forkserver_preload(["__main__"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes, and ends those that a test that failed has left."""
    children: list[Child] = []

    def started(**words: Any) -> Child:
        children.append(Child(tmp_path, **words))
        return children[-1]

    yield started
    for child in children:
        child.close()


def assert_whole(root: Path, factor: float = 2.0, *, random: bool = False) -> None:
    """The cache opens without a step being run, has what an undisturbed build has, and nothing else lies beside it."""
    before = (root / "calls").read_text()
    made = opened(root, factor=factor, random=random)
    assert digest(made) == (digest(opened(root, name="undisturbed", random=True)) if random else expected(factor))
    assert random or (root / "calls").read_text() == before
    data = left_in(root / "c")
    assert len(data) == 1
    assert data[0].startswith("data-")
    assert {one.name for one in root.iterdir()} <= {"c", "calls", "undisturbed"}


# -- interrupted -----------------------------------------------------------------------------------------------------


STOPS = {
    "first piece": ("keep", 1, 0),
    "between two pieces": ("keep", 4, 3),
    "assembling": ("assemble", 1, COUNT // PIECE),
    "before the data are in place": ("commit", 1, COUNT // PIECE),
    "before the note": ("write_note", 1, COUNT // PIECE),
}
"""Where a process is stopped, before which call; how many pieces are complete then."""


@pytest.mark.quick(moment="assembling")
@pytest.mark.parametrize("moment", STOPS)
def test_a_build_that_is_killed_goes_on_where_it_was(tmp_path: Path, start: Start, moment: str) -> None:
    where, at, complete = STOPS[moment]
    child = start(stop=(where, at))
    child.wait_until_there()
    assert child.end(signal.SIGKILL)[0] == -signal.SIGKILL
    first = times_run(tmp_path)
    opened(tmp_path)
    both = times_run(tmp_path)
    assert set(both) == set(range(COUNT)) - set(looked_at(COUNT).tolist())
    kept = {number for number in both if number < complete * PIECE}
    assert all(both[number] == first[number] == 1 for number in kept)
    again = {number for number in both if both[number] > 1}
    assert again <= set(range(complete * PIECE, (complete + 1) * PIECE))
    assert_whole(tmp_path)


@pytest.mark.quick(workers=2, number=[signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_in_the_middle_of_a_piece_costs_that_piece(
    tmp_path: Path, start: Start, number: int, workers: int
) -> None:
    child = start(workers=workers, gate=GATE)
    child.wait_until_there()
    status, text = child.end(number)
    assert status in (-number, 1)
    assert child.outlived() == []
    assert "BrokenProcessPool" not in text
    opened(tmp_path)
    again = [one for one, times in times_run(tmp_path).items() if times > 1]
    assert set(again) & set(range(GATE // PIECE * PIECE, GATE))
    assert len(again) <= workers * PIECE
    assert max(times_run(tmp_path).values()) == 2
    assert_whole(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_whose_main_process_is_killed_let_go_of_the_cache(tmp_path: Path, start: Start, number: int) -> None:
    child = start(workers=2, gate=GATE)
    child.wait_until_there()
    assert child.end(number, alone=True)[0] == -number
    status, text = start().end()
    assert (status, text.split()[:2]) == (0, ["opened", str(COUNT)])
    assert child.outlived() == []
    assert_whole(tmp_path)


def test_a_worker_that_is_killed_is_an_error_with_a_fix(tmp_path: Path, start: Start) -> None:
    child = start(workers=2, gate=GATE)
    child.wait_until_there()
    for process in set(child.running()) - {child.number}:
        # Those that multiprocessing keeps beside the workers may end as soon as the first of these is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    status, text = child.end()
    assert status == 1
    assert all(word in text for word in ("DatasetError", "interrupted", "fix:", "run the same again"))
    opened(tmp_path)
    assert_whole(tmp_path)


def test_a_build_that_dies_behind_its_note_leaves_nothing_for_ever(tmp_path: Path, start: Start) -> None:
    child = start(stop=("sync_folder", 1))
    child.wait_until_there()
    child.end(signal.SIGKILL)
    assert_whole(tmp_path)


def test_a_piece_that_was_damaged_in_between_is_made_again(tmp_path: Path, start: Start) -> None:
    child = start(stop=("assemble", 1))
    child.wait_until_there()
    child.end(signal.SIGKILL)
    piece = sorted((tmp_path / "c").rglob("part-00002*.arrow"))[0]
    data = bytearray(piece.read_bytes())
    data[len(data) // 2] ^= 1
    piece.write_bytes(data)
    sorted((tmp_path / "c").rglob("part-00004*.layout"))[0].write_text("[")
    opened(tmp_path)
    again = {one for one, times in times_run(tmp_path).items() if times > 1}
    assert again >= set(range(2 * PIECE, 3 * PIECE)) - set(looked_at(COUNT).tolist())
    assert_whole(tmp_path)


def test_pieces_of_another_size_are_not_mixed(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(stop=("keep", 4))
    child.wait_until_there()
    child.end(signal.SIGKILL)
    monkeypatch.setattr(building, "PIECE", PIECE + 5)
    opened(tmp_path)
    assert_whole(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
def test_frozen_random_numbers_are_the_same_after_a_kill(tmp_path: Path, start: Start, workers: int) -> None:
    child = start(workers=workers, gate=GATE, random=True)
    child.wait_until_there()
    child.end(signal.SIGKILL)
    status, text = start(workers=3 - workers, random=True).end()
    assert status == 0
    made = opened(tmp_path, random=True)
    assert text.split()[-1] == digest(made)
    assert len({float(one["drawn"][place]) for one in made for place in range(2)}) == 2 * COUNT
    assert_whole(tmp_path, random=True)


# -- an old cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [("keep", 2), ("assemble", 1), ("write_note", 1)], ids=str)
def test_an_old_cache_stays_until_the_new_one_is_complete(tmp_path: Path, start: Start, stop: tuple[str, int]) -> None:
    opened(tmp_path)
    child = start(stop=stop, factor=3.0)
    child.wait_until_there()
    assert digest(opened(tmp_path)) == expected()
    child.end(signal.SIGKILL)
    assert digest(opened(tmp_path)) == expected()
    assert start(factor=3.0).end()[0] == 0
    assert_whole(tmp_path, 3.0)


def test_a_rebuild_that_nobody_continues_is_removed_by_the_next(tmp_path: Path, start: Start) -> None:
    child = start(stop=("write_note", 1), factor=3.0)
    child.wait_until_there()
    child.end(signal.SIGKILL)
    opened(tmp_path, factor=4.0)
    assert_whole(tmp_path, 4.0)


def test_tidying_up_spares_what_another_process_has_just_built(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    child = start(stop=("assemble", 1), factor=3.0)
    child.wait_until_there()
    plain = cache.locked

    def locked_later(*arguments: Any, **words: Any) -> Any:
        if child.process.is_alive():
            assert child.end()[0] == 0
        return plain(*arguments, **words)

    with monkeypatch.context() as patched, contextlib.suppress(FormatError, StaleCacheError):  # its data have gone
        patched.setattr(cache, "locked", locked_later)
        opened(tmp_path)
    assert digest(opened(tmp_path, factor=3.0)) == expected(3.0)


def test_a_process_that_has_opened_an_old_cache_keeps_it(tmp_path: Path, start: Start) -> None:
    made = opened(tmp_path)
    assert start(factor=3.0).end()[0] == 0
    assert digest(made) == expected()


# -- several at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_of_four_processes_one_builds_and_the_others_wait(tmp_path: Path, start: Start, workers: int) -> None:
    first = start(workers=workers, stop=("assemble", 1))
    first.wait_until_there()
    others = [start(workers=workers) for _ in range(3)]
    ends = [first.end(), *(one.end() for one in others)]
    assert {status for status, _ in ends} == {0}, ends
    assert {text.split()[2] for _, text in ends} == {expected()}
    assert set(times_run(tmp_path).values()) == {1}
    assert_whole(tmp_path)


def test_four_processes_that_begin_together_compute_each_sample_once(tmp_path: Path, start: Start) -> None:
    children = [start(stop=("begin", 1)) for _ in range(4)]
    for child in children:
        child.wait_until_there()
    for child in children:
        child.go_on()
    ends = [child.end() for child in children]
    assert {status for status, _ in ends} == {0}, ends
    assert {text.split()[2] for _, text in ends} == {expected()}
    assert set(times_run(tmp_path).values()) == {1}
    assert_whole(tmp_path)


def test_a_waiting_process_takes_over_when_the_one_that_builds_a_cache_is_killed(tmp_path: Path, start: Start) -> None:
    first = start(stop=("keep", 6))
    first.wait_until_there()
    others = [start() for _ in range(2)]
    first.end(signal.SIGKILL)
    ends = [one.end() for one in others]
    assert {(status, text.split()[2]) for status, text in ends} == {(0, expected())}
    assert [number for number, times in times_run(tmp_path).items() if times > 1 and number < 5 * PIECE] == []
    assert_whole(tmp_path)


FRESH = """
import sys
import numpy as np
from headrace import Staged, step

WORDS = {"a", "b", "c", "d"}


class Named:
    table = {"x": 1, "y": {2, 3, "z"}}

    def __call__(self, one):
        with open("calls", "a") as file:
            file.write(f"{one['id']}\\n")
        return {**one, "y": one["x"] * self.table["x"], "known": one["word"] in WORDS}


@step(batched=True)
def counted(batch):
    return {**batch, "n": batch["x"].lengths}


source = [{"id": number, "x": np.arange(number % 4), "word": "abcdef"[number % 6]} for number in range(120)]
made = Staged(source, [Named(), lambda one: {**one, "z": sorted(WORDS)[0]}, counted], cache="c")
print([(one["n"].item(), one["known"], one["z"], one["y"].tolist()) for one in made])
"""


@pytest.mark.thorough
def test_fresh_processes_that_begin_together_share_one_build(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FRESH)
    processes = [
        subprocess.Popen([sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "PYTHONHASHSEED": str(seed)}) for seed in range(2)
    ]  # fmt: skip
    told = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(told) == 1
    assert told.pop().count("(") == COUNT
    assert set(times_run(tmp_path).values()) == {1}
    assert len(left_in(tmp_path / "c")) == 1


def _in_fork(root: Path, answers: Any) -> None:
    answers.put(digest(opened(root)))


def test_forked_processes_share_one_build(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=_in_fork, args=(tmp_path, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    told = Counter(answers.get() for _ in processes)
    for process in processes:
        process.join()
    assert told == {expected(): 4}
    assert set(times_run(tmp_path).values()) == {1}
    assert_whole(tmp_path)


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("limit", "workers"), [(400, 1), (400, 2), (2500, 1)])
def test_files_that_may_not_grow_leave_the_old_cache_and_it_goes_on(
    tmp_path: Path, start: Start, limit: int, workers: int
) -> None:
    opened(tmp_path)
    (tmp_path / "calls").write_text("")
    status, text = start(limit=limit, workers=workers, factor=3.0).end()
    assert status == 1
    assert all(word in text for word in ("DatasetError", "could not be built", "fix:", str(tmp_path / "c")))
    assert digest(opened(tmp_path)) == expected()
    assert start(factor=3.0).end()[0] == 0
    if limit > 400:  # pieces were kept, but for those that were larger
        assert Counter(times_run(tmp_path).values())[1] > COUNT / 4
    assert_whole(tmp_path, 3.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "c").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", tmp_path / "c"], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    yield tmp_path / "c"
    subprocess.run(["umount", "--lazy", tmp_path / "c"], check=True)


@pytest.mark.thorough
def test_a_full_disk_leaves_the_old_cache_and_it_goes_on(tmp_path: Path, small_disk: Path) -> None:
    opened(tmp_path)
    filler = small_disk / ".staged.json.filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 24_000))
    with pytest.raises(DatasetError, match=r"could not be built(.|\n)*No space left(.|\n)*fix:"):
        opened(tmp_path, factor=3.0, stale="rebuild")
    assert digest(opened(tmp_path)) == expected()
    filler.unlink()
    opened(tmp_path, factor=3.0, stale="rebuild")
    assert digest(opened(tmp_path, factor=3.0)) == expected(3.0)
