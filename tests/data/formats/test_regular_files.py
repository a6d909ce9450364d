"""Data are read from regular files: pipes are not waited for, and devices that never end are not read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import FormatError, HeadraceError, SampleError
from headrace.core.files.regular_files import SIDE_FILE, read_side_file
from headrace.data.convert.verify import verify
from headrace.data.formats.manifest import manifest_path
from tests.data.formats.samples import FORMATS, path_of, usual, write
from tests.pairs import in_turn

pytestmark = pytest.mark.timeout(20)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIDE_FILE + 1)


NO_FILES: dict[str, Callable[[Path], None]] = {"a pipe": pipe, "a link to an endless device": endless}
BAD_SIDE_FILES = NO_FILES | {"a file that is too large": huge}


SUFFIXES = [".npy", ".npz", ".csv", ".jsonl", ".tar", ".parquet", ".arrow", ".h5", ".mdb", ""]


@pytest.mark.parametrize(("suffix", "kind"), in_turn(SUFFIXES, NO_FILES))
def test_data_that_are_no_regular_file_are_refused(suffix: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"data{suffix}"
    NO_FILES[kind](path)
    with pytest.raises(FormatError, match="regular file") as caught:
        headrace.open(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("format", FORMATS)
def test_no_named_format_waits_for_a_pipe(format: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    with pytest.raises(FormatError, match="a named pipe"):
        headrace.open(tmp_path / "data", format=format)


@pytest.mark.parametrize(("format", "kind"), in_turn(FORMATS, BAD_SIDE_FILES))
def test_a_side_file_that_is_none_is_refused_in_every_format(format: str, kind: str, tmp_path: Path) -> None:
    path = path_of(format, tmp_path)
    write(format, path, [usual(format)])
    side = manifest_path(path)
    side.unlink(missing_ok=True)
    BAD_SIDE_FILES[kind](side)
    for use in (headrace.open, verify):
        with pytest.raises(FormatError) as caught:
            use(str(path))
        assert str(side) in str(caught.value)


@pytest.mark.parametrize("kind", BAD_SIDE_FILES)
def test_an_index_of_a_tar_shard_that_is_none_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data.tar"
    write("webdataset", path, [usual("webdataset")])
    index = tmp_path / "data.tar.index"
    index.unlink(missing_ok=True)
    BAD_SIDE_FILES[kind](index)
    with pytest.raises(FormatError) as caught:
        headrace.open(path)
    assert str(index) in str(caught.value)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_no_file_of_a_hugging_face_dataset_is_waited_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    write("huggingface", path, [usual("huggingface")])
    manifest_path(path).unlink()
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(FormatError, match="a named pipe"):
        headrace.open(path, format="huggingface")


@pytest.mark.parametrize("name", ["meta.json", "x.memmap"])
def test_no_file_of_a_tensordict_is_waited_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    write("tensordict", path, [usual("tensordict")])
    manifest_path(path).unlink()
    target = path / name
    if name.endswith(".memmap"):
        target = next(iter(path.glob("*.memmap")))
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(HeadraceError):
        headrace.open(path, format="tensordict")


def test_a_database_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "data.mdb")
    for format in (None, "lmdb"):
        with pytest.raises(HeadraceError):
            headrace.open(tmp_path / "data", format=format)


def test_an_image_that_is_a_pipe_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "0.jpg")
    folder = headrace.ImageFolder(str(tmp_path))
    with pytest.raises(SampleError, match="a named pipe"):
        folder[0]


def test_links_to_files_elsewhere_are_followed_as_the_documentation_says(tmp_path: Path) -> None:
    np.save(tmp_path / "real.npy", np.arange(5))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.npy").symlink_to(tmp_path / "real.npy")
    assert [sample["x"] for sample in headrace.open(tmp_path / "data")] == [0, 1, 2, 3, 4]


def test_a_side_file_of_the_largest_size_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "side").write_bytes(json.dumps(list(range(100))).encode())
    size = (tmp_path / "side").stat().st_size
    assert len(read_side_file(tmp_path / "side", size)) == size
    with pytest.raises(FormatError, match="too large"):
        read_side_file(tmp_path / "side", size - 1)
