"""Data that the program itself has open as well, by the form's own library, to read or to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import headrace
from tests.data.formats.own_handles import READ, OwnHandle, to_write
from tests.data.formats.samples import FORMATS, path_of, plain, usual, write
from tests.programs import run

Opens = Callable[[Path], OwnHandle]
LIBRARIES = [
    pytest.param(form, opens, id=f"{form}-{opens.__name__}") for form in FORMATS for opens in READ.get(form, ())
]
QUICK_FORMATS = pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "lmdb"])


@contextmanager
def held(opens: Opens, path: Path) -> Iterator[OwnHandle]:
    """Opens data as a program would, and closes them in the end."""
    handle = opens(path)
    try:
        yield handle
    finally:
        handle.close()


def hdf5(path: Path, chunks: tuple[int, int] | None = (4, 3)) -> list[dict[str, Any]]:
    """Writes an HDF5 file in chunks, which are read by h5py, or in one piece, which is mapped. Returns its samples."""
    values = np.arange(60.0).reshape(20, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=chunks)
    return [{"x": value.tolist()} for value in values]


def written(format: str, folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Writes data of a form. Returns where they lie, and their samples."""
    path = path_of(format, folder)
    write(format, path, [usual(format)])
    return path, plain(headrace.open(path))


def batches(dataset: Any, workers: int) -> list[dict[str, Any]]:
    """Returns all samples as they come through a loader."""
    return plain(headrace.DataLoader(dataset, batch_size=None, num_workers=workers))


@QUICK_FORMATS
@pytest.mark.parametrize(("format", "opens"), LIBRARIES)
def test_data_that_the_program_reads_are_read(format: str, opens: Opens, tmp_path: Path) -> None:
    path, expected = written(format, tmp_path)
    with held(opens, path) as own:
        theirs = own.values()
        dataset = headrace.open(path)
        assert plain(dataset) == expected
        assert own.values() == theirs
        assert batches(dataset, 1) == expected
        assert own.values() == theirs

    assert plain(dataset) == expected
    assert plain(headrace.open(path)) == expected
    assert batches(dataset, 1) == expected


@QUICK_FORMATS
@pytest.mark.parametrize(("format", "opens"), LIBRARIES)
def test_the_program_opens_data_while_they_are_read(format: str, opens: Opens, tmp_path: Path) -> None:
    path, expected = written(format, tmp_path)
    dataset = headrace.open(path)
    loader = headrace.DataLoader(dataset, batch_size=None, num_workers=1)
    inside = iter(dataset.stream())
    outside = iter(loader)
    found = [*plain([next(inside)]), *plain([next(outside)]), *plain([dataset[1]])]
    with held(opens, path) as own:
        theirs = own.values()
        found += plain([next(inside), next(outside), dataset[2]])
        assert own.values() == theirs

    assert found == [expected[0], expected[0], expected[1], expected[1], expected[1], expected[2]]
    assert plain(inside) == expected[2:]
    assert plain(outside) == expected[2:]
    with held(opens, path) as own:
        del dataset, loader, inside, outside
        assert own.values() == theirs


@QUICK_FORMATS
@pytest.mark.parametrize("format", FORMATS)
def test_data_that_the_program_has_open_to_write_are_read(format: str, tmp_path: Path) -> None:
    path, expected = written(format, tmp_path)
    with held(lambda path: to_write(format, path), path) as own:
        theirs = own.values()
        dataset = headrace.open(path)
        assert plain(dataset) == expected
        assert batches(dataset, 1) == expected
        assert own.values() == theirs

    assert plain(headrace.open(path)) == expected


@QUICK_FORMATS
@pytest.mark.parametrize("format", FORMATS)
def test_the_program_opens_data_to_write_while_they_are_read(format: str, tmp_path: Path) -> None:
    path, expected = written(format, tmp_path)
    dataset = headrace.open(path)
    assert plain([dataset[0]]) == expected[:1]
    with held(lambda path: to_write(format, path), path) as own:
        theirs = own.values()
        assert plain([dataset[3]]) == expected[3:4]
        assert batches(dataset, 1) == expected
        assert own.values() == theirs

    assert plain(dataset) == expected


@pytest.mark.quick
@pytest.mark.parametrize("workers", [0, 1])
def test_hdf5_in_chunks_is_read_beside_the_program(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    expected = hdf5(path)
    with h5py.File(path, "r") as own:
        dataset = headrace.open(path)
        assert batches(dataset, workers) == expected
        assert own["x"][3].tolist() == expected[3]["x"]

    assert batches(dataset, workers) == expected
    with h5py.File(path, "r") as own:
        assert own["x"][3].tolist() == expected[3]["x"]
        assert batches(dataset, workers) == expected
        del dataset
        assert own["x"][4].tolist() == expected[4]["x"]


@pytest.mark.parametrize("chunks", [None, (4, 3)])
@pytest.mark.parametrize("locking", [False, True])
def test_hdf5_that_the_program_opened_with_or_without_locks_is_read(locking: bool, chunks: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    expected = hdf5(path, chunks)
    with h5py.File(path, "r", locking=locking) as own:
        dataset = headrace.open(path)
        assert plain(dataset) == expected
        assert batches(dataset, 1) == expected
        assert own["x"][3].tolist() == expected[3]["x"]


@pytest.mark.quick
@pytest.mark.parametrize("chunks", [None, (4, 3)])
def test_what_the_program_has_written_before_an_hdf5_file_is_opened_is_read(chunks: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    expected = hdf5(path, chunks)
    with h5py.File(path, "r+") as own:
        own["x"][2] = -1.0
        expected[2] = {"x": [-1.0] * 3}
        dataset = headrace.open(path)
        assert plain(dataset) == expected
        assert own["x"][2].tolist() == [-1.0] * 3

    assert plain(dataset) == expected


READ_ELSEWHERE = """
import sys, headrace
from headrace.core.errors import FormatError
try:
    headrace.open(sys.argv[1])
except FormatError as error:
    print(error)
"""


@pytest.mark.parametrize("chunks", [None, (4, 3)])
def test_hdf5_that_another_program_writes_says_so(chunks: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    hdf5(path, chunks)
    with h5py.File(path, "r+"):
        ended = run(["-c", READ_ELSEWHERE, path])

    assert ended.stderr == ""
    assert "has it open for writing" in ended.stdout
    assert "close it there first" in ended.stdout
