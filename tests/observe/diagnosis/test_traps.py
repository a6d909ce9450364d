"""Traps that real loaders and datasets walk into are noted, and datasets that are well made walk into none."""

from __future__ import annotations

import io
import random
import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

import headrace
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.traps import TRAPS, findings_of_traps
from headrace.telemetry import object_growth as objects
from headrace.telemetry.dataset_traps import hazards
from headrace.telemetry.recording import Recording, Setting, Trap
from tests.observe.diagnosis.steady import Loop, recording_of

FORKED = Setting(backend="process", start_method="fork", num_workers=2)


class Holding(Dataset[torch.Tensor]):
    """Eight samples, and whatever it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor(key)


def traps(loader: Any) -> list[str]:
    """The names of the traps that a loader's epoch walks into."""
    for _ in loader:
        pass
    return [trap.name for trap in loader.recording.setting.traps]


def opened(kind: str, folder: Path) -> Any:
    """Returns an open file of some kind."""
    path = folder / "data"
    if kind == "hdf5":
        return h5py.File(path, "w")
    if kind == "zip":
        return zipfile.ZipFile(path, "w")
    if kind == "tar":
        return tarfile.open(path, "w")
    if kind == "unbuffered":
        return open(path, "wb", buffering=0)
    return open(path, "w" if kind == "text" else "wb")


kinds = pytest.mark.parametrize("kind", ["text", "binary", "unbuffered", "hdf5", "zip", "tar"])


@kinds
def test_a_file_that_is_open_when_workers_are_forked_is_noted(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as file:
        dataset = Holding(file=file)
        loader = headrace.DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork")
        assert traps(loader) == ["handle-shared"]
    (trap,) = loader.recording.setting.traps
    assert trap.text.startswith(f"Holding.file is a {type(file).__module__}.{type(file).__qualname__}, opened before")
    (finding,) = [one for one in loader.diagnose().findings if one.name == "handle-shared"]
    assert finding.sentence.startswith(trap.text)
    assert (finding.stage, finding.gain) == ("data", None)
    assert "headrace.open" in finding.advice


@kinds
def test_a_file_that_was_closed_is_no_trap(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as file:
        pass
    assert list(hazards(Holding(file=file), FORKED)) == []


@kinds
@pytest.mark.parametrize(
    "setting",
    [
        replace(FORKED, start_method="spawn"),
        replace(FORKED, start_method="forkserver"),
        replace(FORKED, backend="thread"),
        replace(FORKED, backend="inline"),
    ],
    ids=["spawn", "forkserver", "thread", "inline"],
)
def test_a_file_is_no_trap_where_nothing_is_forked(kind: str, setting: Setting, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as file:
        assert list(hazards(Holding(file=file), setting)) == []


def test_a_database_that_is_open_is_noted() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        assert [trap.name for trap in hazards(Holding(rows=connection), FORKED)] == ["handle-shared"]
    finally:
        connection.close()


def test_what_only_looks_like_a_file_is_no_trap() -> None:
    with tempfile.TemporaryDirectory() as folder:
        held = {"path": Path(folder), "memory": io.BytesIO(b"abc"), "text": io.StringIO("abc"), "array": np.zeros(3)}
        assert list(hazards(Holding(**held), FORKED)) == []


@pytest.mark.parametrize(
    "generator",
    [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()],
    ids=lambda one: type(one).__name__,
)
def test_a_generator_of_the_data_sets_own_is_noted_where_workers_copy_it(generator: Any) -> None:
    dataset = Holding(own=generator)
    assert traps(headrace.DataLoader(dataset, 4, num_workers=2)) == ["generator-copied"]
    assert traps(headrace.DataLoader(dataset, 4, num_workers=2, backend="thread")) == []
    assert traps(headrace.DataLoader(dataset, 4)) == []
    spawned = list(hazards(dataset, replace(FORKED, start_method="spawn")))
    assert [trap.name for trap in spawned] == ["generator-copied"]


def test_data_sets_around_others_are_looked_into() -> None:
    inner = Holding(own=np.random.default_rng(0))
    dataset: Any = Subset(Subset(inner, range(6)), range(4))
    (trap,) = hazards(dataset, FORKED)
    assert trap.text.startswith("Subset.dataset.dataset.own is a numpy.random._generator.Generator")


def test_traps_are_noted_once_however_many_epochs_there_are() -> None:
    loader = headrace.DataLoader(Holding(own=random.Random(0)), 4, num_workers=1)
    assert [traps(loader) for _ in range(3)] == [["generator-copied"]] * 3


@pytest.mark.parametrize(
    "entries", [[str(number) for number in range(1000)], {number: str(number) for number in range(1000)}], ids=type
)
def test_many_python_objects_are_noted(entries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LARGE", 20_000)
    (trap,) = hazards(Holding(names=entries), FORKED)
    assert trap.name == "python-objects"
    assert trap.text.startswith("Holding.names holds 1,000 of them, ")
    assert list(hazards(Holding(names=entries), replace(FORKED, backend="thread"))) == []
    assert list(hazards(Holding(names=np.arange(1000)), FORKED)) == []
    assert list(hazards(Holding(names=headrace.compact([str(number) for number in range(1000)])), FORKED)) == []


def test_pinning_is_missed_where_there_is_an_accelerator() -> None:
    with_one = Setting(accelerator="cuda")
    (trap,) = hazards(Holding(), with_one)
    assert (trap.name, "cuda" in trap.text) == ("not-pinned", True)
    assert list(hazards(Holding(), replace(with_one, pin_memory=True))) == []
    assert list(hazards(Holding(), Setting())) == []


class Numbers(IterableDataset[torch.Tensor]):
    """A stream of 24 numbers, in a way of its own in each worker."""

    def __init__(self, way: Callable[[], Iterator[int]]) -> None:
        self.way = way

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, self.way())


def all_of_them() -> Iterator[int]:
    return iter(range(24))


def its_share() -> Iterator[int]:
    info: Any = get_worker_info()
    return iter(range(info.id, 24, info.num_workers))


def through_shard() -> Iterator[int]:
    return iter(headrace.shard(range(24)))


def only_in_worker_0() -> Iterator[int]:
    info: Any = get_worker_info()
    return iter(range(24) if info.id == 0 else ())


@pytest.mark.parametrize("backend", ["process", "thread"])
@pytest.mark.parametrize(
    ("way", "expected"),
    [(all_of_them, ["stream-repeats"]), (its_share, []), (through_shard, []), (only_in_worker_0, [])],
)
def test_a_stream_that_repeats_itself_in_each_worker_is_noted(way: Any, expected: list[str], backend: str) -> None:
    loader = headrace.DataLoader(Numbers(way), 4, num_workers=2, backend=backend)  # type: ignore[arg-type]
    assert traps(loader) == expected


@pytest.mark.parametrize("options", [{"shard": "auto"}, {"num_workers": 1}, {"num_workers": 0}])
def test_a_stream_that_cannot_repeat_itself_is_no_trap(options: dict[str, Any]) -> None:
    assert traps(headrace.DataLoader(Numbers(all_of_them), 4, **{"num_workers": 2, **options})) == []


class SplitNumbers(Numbers):
    """The same, split over the workers as it comes."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return headrace.shard(super().__iter__())


@pytest.mark.parametrize(
    ("dataset", "options", "splits"),
    [
        (Numbers(all_of_them), {}, False),
        (Numbers(all_of_them), {"shard": "auto"}, True),
        (SplitNumbers(all_of_them), {}, True),
        (Holding(), {}, True),
    ],
)
def test_the_recording_tells_whether_each_worker_has_a_part_of_the_data(
    dataset: Any, options: dict[str, Any], splits: bool
) -> None:
    loader = headrace.DataLoader(dataset, 4, **options)
    for _ in loader:
        pass
    assert loader.recording.setting.splits is splits


def test_every_trap_has_words_and_a_fix() -> None:
    setting = Setting(traps=tuple(Trap(name, f"Here is {name}.") for name in TRAPS))
    found = list(findings_of_traps(Recording(setting=setting)))
    assert [one.name for one in found] == list(TRAPS)
    for one in found:
        assert one.sentence.startswith(f"Here is {one.name}. ")
        assert one.advice
        assert (one.gain, one.change) == (None, {})


def test_what_makes_data_wrong_comes_before_what_makes_them_slow() -> None:
    setting = Setting(traps=tuple(Trap(name, f"Here is {name}.") for name in TRAPS))
    names = [one.name for one in diagnose(Recording(setting=setting)).findings]  # nothing has been delivered yet
    wrong, slow = ["generator-copied", "stream-repeats", "handle-shared"], ["python-objects", "not-pinned"]
    assert names == wrong + slow
    loop = Loop(load=30e-3, loop=1e-3, workers=2, setting={"traps": (Trap("stream-repeats", ""),)})
    names = [one.name for one in diagnose(recording_of(loop)).findings]
    assert names[0] == "stream-repeats"
    assert "slow-load" in names
