"""A dataset is bound to the place it was opened at: after `os.chdir`, pickled, in workers, by any name of the path."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headrace
from headrace.core.errors import UsageError
from tests.data.formats.samples import FORMATS, path_of, plain, usual, write

SAMPLES = 6


def _relative(path: Path) -> str:
    return path.name


def _dotted(path: Path) -> str:
    return f"./../{path.parent.name}/{path.name}"


def _link(path: Path) -> str:
    link = path.with_name("link" + path.suffix)
    link.symlink_to(path.name)
    beside = path.with_name(f"{path.name}.headrace.json")
    if beside.exists():
        link.with_name(f"{link.name}.headrace.json").symlink_to(beside.name)
    return link.name


def _home(path: Path) -> str:
    return f"~/{path.name}"


def _file_url(path: Path) -> str:
    return path.as_uri()


def _slash(path: Path) -> str:
    return f"{path.name}/" if path.is_dir() else path.name


NAMES: dict[str, Callable[[Path], str]] = {
    "dotted": _dotted,
    "link": _link,
    "home": _home,
    "file-url": _file_url,
    "slash": _slash,
    "relative": _relative,
}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, which hold other data under the same names."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    return tmp_path / "here", tmp_path / "there"


def _write_both(format: str, places: tuple[Path, Path]) -> Path:
    """Writes other samples under one name in each folder. Returns that of the first."""
    for seed, folder in enumerate(places):
        write(format, path_of(format, folder), [usual(format, SAMPLES, seed)])
    return path_of(format, places[0])


@pytest.mark.parametrize("naming", NAMES)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.quick(naming="relative")
def test_a_form_is_read_where_it_was_opened(
    format: str, naming: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = places
    path = _write_both(format, places)
    expected = plain(headrace.open(path))
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.chdir(here)
    name = NAMES[naming](path)
    dataset = headrace.open(name)
    unused = pickle.dumps(dataset)

    monkeypatch.setenv("HOME", str(there))
    monkeypatch.chdir(there)
    assert plain(dataset) == expected
    assert plain(pickle.loads(pickle.dumps(dataset))) == expected
    assert plain(pickle.loads(unused)) == expected


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.thorough
def test_spawned_workers_read_it_where_it_was_opened(
    format: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = places
    path = _write_both(format, places)
    expected = plain(headrace.open(path))
    monkeypatch.chdir(here)
    dataset = headrace.open(path.name)
    monkeypatch.chdir(there)
    loader = headrace.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert plain(loader) == expected


def test_listed_files_and_patterns_are_bound(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = places
    for seed, folder in enumerate(places):
        for number in range(2):
            write("parquet", folder / f"part-{number}.parquet", [usual("parquet", 3, 10 * seed + number)])
    monkeypatch.chdir(here)
    expected = plain(headrace.open(here / "part-*.parquet"))
    opened = [
        headrace.open(["part-0.parquet", "part-1.parquet"]),
        headrace.open("part-*.parquet"),
        headrace.open("part-{0..1}.parquet"),
    ]
    monkeypatch.chdir(there)
    for dataset in opened:
        assert plain(dataset) == expected


def test_a_flat_file_is_bound(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, folder in enumerate(places):
        np.full(10, number, np.uint16).tofile(folder / "train.bin")
    monkeypatch.chdir(places[0])
    windows = headrace.open_tokens("train.bin", dtype="uint16", window=3)
    monkeypatch.chdir(places[1])
    assert windows[0]["inputs"].tolist() == [0, 0, 0]


def test_an_image_folder_is_bound(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, folder in enumerate(places):
        (folder / "photos" / "cat").mkdir(parents=True)
        Image.new("RGB", (2, 2), (number, 0, 0)).save(folder / "photos" / "cat" / "0.png")
    monkeypatch.chdir(places[0])
    monkeypatch.setenv("HOME", str(places[0]))
    opened = [headrace.ImageFolder("photos"), headrace.ImageFolder("~/photos")]
    monkeypatch.chdir(places[1])
    for photos in opened:
        assert np.asarray(photos[0][0])[0, 0].tolist() == [0, 0, 0]


def test_two_dots_behind_a_link_lead_where_the_system_says(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = places
    (there / "deep").mkdir()
    (here / "link").symlink_to(there / "deep")
    for number, folder in enumerate(places):
        np.save(folder / "x.npy", np.array([number]))
    monkeypatch.chdir(here)
    dataset: Any = headrace.open("link/../x.npy")
    os.chdir("/")
    assert torch.as_tensor(dataset[0]["data"]).item() == 1


def test_the_home_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no such user"):
        headrace.open("~nobody-of-this-name/x.npy")
