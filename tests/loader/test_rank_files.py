"""`headrace.save_state` and `headrace.merge_states(folder)`: states as files of ranks, joined without a collective."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import headrace
from headrace.core.errors import StateError, UsageError
from headrace.core.files import atomic_file
from headrace.epoch.snapshot import sealed

LENGTH = 48


class Counting(Dataset[int]):
    """A dataset whose state has tensors, bytes, tuples and keys that are numbers."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {
            "generator": torch.arange(3),
            "half": torch.ones(2, 2, dtype=torch.bfloat16).T,
            "none": torch.empty(0, 3),
            "scalar": torch.tensor(2),
            1: (b"\x00", 2.5, float("inf")),
            "own": {"deep": [None, True], "$tuple": {3}},
            "numpy": np.random.RandomState(1).get_state(),
            "number": np.float32(0.5),
        }

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self) -> dict[Any, Any]:
        return self.state

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.state = state


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))


def make(rank: int = 0, world: int = 1, dataset: Any = None) -> headrace.DataLoader[Any]:
    if dataset is None:
        dataset = torch.arange(LENGTH)
    return headrace.DataLoader(dataset, 12 // world, shard=headrace.Shard(rank, world), shuffle=True)


def save(folder: Path, step: int, world: int, *, ranks: Any = None, keep: int = 2) -> list[Path]:
    """Saves a state behind `step` batches on some ranks, or on all."""
    paths = []
    for rank in range(world) if ranks is None else ranks:
        loader = make(rank, world)
        assert len(list(islice(loader, step))) == step
        paths.append(headrace.save_state(loader, folder, step, keep=keep))
    return paths


def rest(state: Any, world: int = 1) -> list[int]:
    """What a run of so many ranks trains on from a state, in the order of one rank."""
    parts = []
    for rank in range(world):
        loader = make(rank, world)
        loader.load_state_dict(state)
        parts.append([batch.tolist() for batch in loader])
    steps = [zip(*step, strict=True) for step in zip(*parts, strict=True)]
    return [number for step in steps for place in step for number in place]


def whole() -> list[int]:
    return [number for batch in make() for number in batch.tolist()]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_named_by_step_rank_and_world(tmp_path: Path) -> None:
    paths = save(tmp_path, 2, 3)
    expected = [f"step-2/loader-{rank}-of-3" for rank in range(3)]
    assert names(tmp_path) == expected
    assert [str(path.relative_to(tmp_path)) for path in paths] == expected


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_files_of_all_ranks_are_merged_and_load_on_any_number_of_ranks(world: int, tmp_path: Path) -> None:
    save(tmp_path, 2, 3)
    state = headrace.merge_states(tmp_path)
    assert state["step"] == 2
    assert rest(state, world) == whole()[24:]
    assert rest(headrace.merge_states(str(tmp_path)), world) == whole()[24:]


def test_without_a_step_the_folder_is_that_of_one_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "step-7"
    for rank in range(2):
        loader = make(rank, 2)
        next(iter(loader))
        headrace.save_state(loader.state_dict(), folder)
    assert names(folder) == ["loader-0-of-2", "loader-1-of-2"]
    assert rest(headrace.merge_states(folder)) == whole()[12:]
    assert headrace.merge_states(tmp_path)["step"] == 7


def test_the_last_step_that_is_complete_counts(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    save(tmp_path, 2, 2)
    save(tmp_path, 3, 2, ranks=[1])
    assert headrace.merge_states(tmp_path)["step"] == 2
    save(tmp_path, 3, 2, ranks=[0])
    assert headrace.merge_states(tmp_path)["step"] == 3
    assert headrace.merge_states(tmp_path, step=2)["step"] == 2


DAMAGES: dict[str, Any] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "a byte less": lambda content: content[:-1],
    "another number": lambda content: content.replace(b'"batches": 2', b'"batches": 3'),
    "no state": lambda content: b"{}",
    "a list": lambda content: b"[1]",
    "text": lambda content: b"PK text",
    "a tag that is none": lambda content: b'{"$tensor": ["load", [], ""]}',
    "an unknown tag": lambda content: b'{"$code": 1}',
    "deep": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_makes_its_step_incomplete_and_hides_no_older_one(damage: str, tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    damaged = save(tmp_path, 2, 2)[1]
    content = damaged.read_bytes()
    damaged.write_bytes(DAMAGES[damage](content))
    assert damaged.read_bytes() != content
    assert headrace.merge_states(tmp_path)["step"] == 1


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
def test_a_file_with_tensors_that_is_cut_off_makes_its_step_incomplete(cut: float, tmp_path: Path) -> None:
    for step in (1, 2):
        path = headrace.save_state(make(dataset=Counting()), tmp_path, step)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    assert headrace.merge_states(tmp_path)["step"] == 1


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file_makes_its_step_incomplete(kind: str, tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    path = save(tmp_path, 2, 2)[0]
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "nowhere")
    assert headrace.merge_states(tmp_path)["step"] == 1


def test_ranks_that_saved_different_positions_under_one_step_make_it_incomplete(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    save(tmp_path, 2, 2)
    other = make(1, 2)
    assert len(list(islice(other, 3))) == 3
    headrace.save_state(other, tmp_path, 2)
    assert headrace.merge_states(tmp_path)["step"] == 1
    with pytest.raises(StateError, match=r"step 2: .*the ranks differ in batches"):
        headrace.merge_states(tmp_path, step=2)


def test_if_no_step_is_complete_the_error_says_which_ranks_are_missing(tmp_path: Path) -> None:
    save(tmp_path, 1, 3, ranks=[0, 2])
    save(tmp_path, 2, 3, ranks=[1])
    save(tmp_path, 3, 3)[2].write_bytes(b"{")
    with pytest.raises(StateError, match=r"(?s)no saved step is complete.*place:.*fix:") as caught:
        headrace.merge_states(tmp_path)
    said = "step 3: cannot read rank 2 of 3; step 2: no file of ranks 0, 2 of 3; step 1: no file of rank 1 of 3"
    assert said in str(caught.value)


def test_many_missing_ranks_are_counted(tmp_path: Path) -> None:
    save(tmp_path, 1, 1)[0].rename(tmp_path / "step-1" / "loader-2-of-100000000")
    with pytest.raises(StateError, match=r"no file of ranks 0, 1, 3, 4, 5, 6, 7, 8 and 99999991 more of 100000000"):
        headrace.merge_states(tmp_path)


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_files_of_ranks_is_an_error(folder: str, tmp_path: Path) -> None:
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "model.pt").write_bytes(b"weights")
    with pytest.raises(StateError, match="no files of ranks"):
        headrace.merge_states(tmp_path / folder)


# -- other numbers of ranks --------------------------------------------------------------------------------------------


def test_of_two_runs_that_saved_the_same_step_the_later_one_counts(tmp_path: Path) -> None:
    for first, second in ((2, 3), (3, 2)):
        folder = tmp_path / f"{first}-{second}"
        for path in save(folder, 2, first):
            os.utime(path, (1, 1))
        save(folder, 2, second, ranks=[0])
        assert len(headrace.merge_states(folder)["ranks"]) == first
        save(folder, 2, second)
        assert len(headrace.merge_states(folder)["ranks"]) == second


def test_all_ranks_of_a_replica_write_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        save(tmp_path, 2, 2)
    assert names(tmp_path) == ["step-2/loader-0-of-2", "step-2/loader-1-of-2"]
    assert rest(headrace.merge_states(tmp_path)) == whole()[24:]


# -- old steps ---------------------------------------------------------------------------------------------------------


def test_the_last_two_complete_steps_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, 2)
    headrace.save_state(make(0, 2), tmp_path, 3)
    assert names(tmp_path) == [f"step-{step}/loader-{rank}-of-2" for step in (2, 3) for rank in (0, 1)]
    assert not (tmp_path / "step-1").exists()


def test_nothing_is_removed_before_newer_steps_are_complete(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, keep=1)
    save(tmp_path, 2, 2, ranks=[0], keep=1)
    assert "step-1/loader-0-of-2" in names(tmp_path)
    save(tmp_path, 3, 2, ranks=[0], keep=1)
    assert headrace.merge_states(tmp_path)["step"] == 1
    save(tmp_path, 3, 2, ranks=[1], keep=1)
    assert headrace.merge_states(tmp_path)["step"] == 3
    assert names(tmp_path) == [f"step-{step}/loader-0-of-2" for step in (1, 2)] + [
        "step-3/loader-0-of-2",
        "step-3/loader-1-of-2",
    ]


def test_files_of_ranks_that_are_there_no_more_are_removed_too(tmp_path: Path) -> None:
    save(tmp_path, 1, 4)
    for step in (2, 3):
        save(tmp_path, step, 2)
    headrace.save_state(make(0, 2), tmp_path, 3)
    assert names(tmp_path) == [f"step-{step}/loader-{rank}-of-2" for step in (2, 3) for rank in (0, 1)]


def test_a_run_that_went_back_keeps_its_own_steps_and_the_later_ones(tmp_path: Path) -> None:
    for step in (3, 4):
        save(tmp_path, step, 2)
    save(tmp_path, 1, 2)
    assert {name.partition("/")[0] for name in names(tmp_path)} == {"step-1", "step-3", "step-4"}


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    model = tmp_path / "step-1" / "model.pt"
    model.write_bytes(b"weights")
    (tmp_path / "notes").touch()
    for step in (1, 2, 3):
        save(tmp_path, step, 1)
    assert names(tmp_path) == ["notes", "step-1/model.pt", "step-2/loader-0-of-1", "step-3/loader-0-of-1"]


# -- what a file holds -------------------------------------------------------------------------------------------------


def test_a_state_with_tensors_bytes_and_tuples_comes_back_as_it_was(tmp_path: Path) -> None:
    dataset = Counting()
    headrace.save_state(make(dataset=dataset), tmp_path, 1)
    resumed = Counting()
    resumed.state = {}
    loader = make(dataset=resumed)
    loader.load_state_dict(headrace.merge_states(tmp_path))
    next(iter(loader))
    assert str(resumed.state) == str(dataset.state)
    assert resumed.state["half"].dtype == torch.bfloat16
    assert type(resumed.state["number"]) is np.float32


class Opens:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "bad",
    [Opens, torch.eye(2).to_sparse(), np.array([{}], dtype=object), np.zeros(1, "i4, i4"), 1j, range(2)],
    ids=lambda bad: type(bad).__name__,
)
def test_an_object_that_could_not_be_read_again_is_refused_when_it_is_saved(bad: object, tmp_path: Path) -> None:
    dataset = Counting()
    dataset.state["bad"] = bad
    if bad is Opens:
        dataset.state["bad"] = Opens(tmp_path / "ran")
    with pytest.raises(StateError, match=r"(?s)state of the dataset cannot be saved.*found:.*fix:"):
        headrace.save_state(make(dataset=dataset), tmp_path, 1)
    assert names(tmp_path) == []


def test_a_file_that_would_run_code_runs_none(tmp_path: Path) -> None:
    save(tmp_path, 1, 1)
    path = save(tmp_path, 2, 1)[0]
    for content in (pickle.dumps(Opens(tmp_path / "ran")), b""):
        path.write_bytes(content)
        assert headrace.merge_states(tmp_path)["step"] == 1
    torch.save(Opens(tmp_path / "ran"), path)
    assert headrace.merge_states(tmp_path)["step"] == 1
    assert not (tmp_path / "ran").exists()


def test_the_disk_has_a_file_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    sync = os.fsync

    def spy(descriptor: int) -> None:
        sync(descriptor)
        seen.append([name for name in names(tmp_path) if not name.rpartition("/")[2].startswith(".")])

    monkeypatch.setattr(atomic_file.os, "fsync", spy)
    save(tmp_path, 1, 1)
    assert seen == [[], ["step-1/loader-0-of-1"]]
    assert names(tmp_path) == ["step-1/loader-0-of-1"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1, 1)[0]
    content = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 1, 1)
    assert path.read_bytes() == content
    assert names(tmp_path) == ["step-1/loader-0-of-1"]


def test_a_reader_sees_whole_files_while_ranks_write(tmp_path: Path) -> None:
    states = []
    for rank in range(2):
        loader = make(rank, 2)
        next(iter(loader))
        states.append(loader.state_dict())
        headrace.save_state(states[rank], tmp_path, 1)

    ended = threading.Event()

    def write() -> None:
        for _ in range(100):
            for state in states:
                headrace.save_state(state, tmp_path, 1)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not ended.is_set():
            assert headrace.merge_states(tmp_path)["step"] == 1
    finally:
        writer.join()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((3, "folder", 1), "a int"),
        (([1], "folder", 1), "a list"),
        (("loader", 7, 1), "folder"),
        (("loader", "s3://bucket/states", 1), "takes no URL"),
        (("loader", "folder", -1), "-1"),
        (("loader", "folder", True), "True"),
        (("loader", "folder", "7"), "'7'"),
    ],
)
def test_wrong_arguments_are_told(arguments: tuple[Any, ...], found: str, tmp_path: Path) -> None:
    loader = make() if arguments[0] == "loader" else arguments[0]
    with pytest.raises(UsageError, match=found):
        headrace.save_state(loader, *arguments[1:])


def test_a_merged_state_is_not_that_of_a_rank(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    with pytest.raises(UsageError, match="on this rank"):
        headrace.save_state(headrace.merge_states(tmp_path), tmp_path, 1)


@pytest.mark.parametrize("keep", [0, True, "2", None])
def test_a_number_of_steps_to_keep_that_cannot_be_is_told(keep: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep"):
        headrace.save_state(make(), tmp_path, 1, keep=keep)


def test_a_step_of_states_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="a folder in states="):
        headrace.merge_states([make().state_dict()], step=1)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["stream", "with a state in each worker", "with tensors"])
def test_the_states_of_a_thousand_ranks_with_64_workers_are_merged(kind: str, tmp_path: Path) -> None:
    ranks = 1000
    loader = headrace.DataLoader(Numbers() if kind == "stream" else Counting(), 1, shard="auto", num_workers=0)
    loader.dataset.state = {"position": 5}  # type: ignore[attr-defined]
    if kind == "with tensors":
        loader.dataset.state["counts"] = torch.arange(4)  # type: ignore[attr-defined]
    first = loader.state_dict()
    if kind != "stream":
        state = loader.dataset.state_dict()  # type: ignore[attr-defined]
        first["replicas"] = {"count": 64, "next": 0, "first": 0, "states": [[worker, state] for worker in range(64)]}
    folder = tmp_path / "step-5"
    folder.mkdir()
    for rank in range(ranks):
        headrace.save_state(sealed({**first, "rank": rank, "world_size": ranks}), folder)

    began = time.perf_counter()
    merged = headrace.merge_states(tmp_path)
    seconds = time.perf_counter() - began
    print(f"{kind}: {ranks} files merged in {seconds:.2f} s")  # noqa: T201 - the figure is shown by -s
    assert len(merged["ranks"]) == ranks
