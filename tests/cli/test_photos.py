"""The demo's photographs: the same for the same seed, and complete or not there at all."""

from __future__ import annotations

import importlib.util
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.photos import PHOTOGRAPHS, cut_out, make_photo_folder
from PIL import Image

from headrace.core.errors import DatasetError, MissingExtraError

CLASSES = ["astronaut", "cat", "coffee", "flower", "galaxies"]
CLASSES += ["motorcycle", "retina", "rocket", "temple", "tissue"]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.jpg")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """43 photographs of seed 5; tests only read them."""
    root = tmp_path_factory.mktemp("made") / "photos"
    make_photo_folder(root, 43, seed=5)
    return root


def test_each_class_has_training_and_validation_pictures(photos: Path) -> None:
    for split, per_class in (("train", {3, 4}), ("val", {1})):
        assert CLASSES == sorted(folder.name for folder in (photos / split).iterdir())
        assert per_class == {len(list(folder.iterdir())) for folder in (photos / split).iterdir()}
    assert 43 == len(contents(photos))
    assert ["photos.json", "train", "val"] == sorted(path.name for path in photos.iterdir())


@pytest.mark.thorough
def test_one_picture_in_ten_is_for_validation(tmp_path: Path) -> None:
    make_photo_folder(tmp_path / "photos", 300)
    splits = Counter(path.split("/")[0] for path in contents(tmp_path / "photos"))
    assert {"train": 270, "val": 30} == splits


def test_pictures_are_rgb_jpegs_of_several_sizes_between_the_limits(photos: Path) -> None:
    sizes = set()
    for path in photos.rglob("*.jpg"):
        with Image.open(path) as image:
            assert ("JPEG", "RGB") == (image.format, image.mode)
            sizes.add(image.size)
    assert all(400 <= width <= 500 and 4 * height == 3 * width for width, height in sizes)
    assert len(sizes) > 10


def test_pictures_of_one_class_resemble_each_other_and_not_other_classes(photos: Path) -> None:
    colors = {}
    for name in ("flower", "tissue"):
        images = [Image.open(path).convert("RGB") for path in (photos / "train" / name).iterdir()]
        colors[name] = [np.asarray(image).mean() for image in images]
    assert max(colors["flower"]) < min(colors["tissue"])


def test_no_two_pictures_are_the_same(photos: Path) -> None:
    assert 43 == len(set(contents(photos).values()))
    assert 10 == len(PHOTOGRAPHS) == len({source.file for source in PHOTOGRAPHS})


def box_of_a_cut_out(photograph: Image.Image, seed: int) -> tuple[int, int, int, int, bool]:
    """Left, top, width, height and mirrored or not, of a part of a photograph whose red is x and green is y."""
    pixels = np.asarray(cut_out(photograph, random.Random(seed))).astype(int)
    left, top, _ = pixels.min(axis=(0, 1)).tolist()
    right, bottom, _ = pixels.max(axis=(0, 1)).tolist()
    return left, top, right - left, bottom - top, bool(pixels[0, 0, 0] > pixels[0, -1, 0])


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "height"), [(250, 150), (200, 240), (240, 180)])
def test_parts_are_undistorted_hold_30_to_100_percent_and_half_are_mirrored(width: int, height: int) -> None:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    photograph = Image.fromarray(np.stack([x, y, x], axis=2).astype(np.uint8))
    boxes = [box_of_a_cut_out(photograph, seed) for seed in range(100)]
    largest = min(width, height * 4 / 3) ** 2 * 3 / 4
    shares = [across * down / largest for _, _, across, down, _ in boxes]
    assert 0.27 < min(shares) < 0.4
    assert 0.9 < max(shares) <= 1.0
    assert all(across / down == pytest.approx(4 / 3, rel=0.06) for _, _, across, down, _ in boxes)
    assert 30 < sum(mirrored for *_, mirrored in boxes) < 70
    assert max(left for left, *_ in boxes) > 0.2 * width
    assert max(top for _, top, *_ in boxes) > 0.2 * height


def test_photos_of_one_seed_are_the_same_pictures(photos: Path, tmp_path: Path) -> None:
    make_photo_folder(tmp_path / "again", 43, seed=5)
    make_photo_folder(tmp_path / "other", 43, seed=6)
    first, again, other = (contents(root) for root in (photos, tmp_path / "again", tmp_path / "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())


def test_the_marker_tells_count_seed_version_and_whom_to_thank(photos: Path) -> None:
    marker = json.loads((photos / "photos.json").read_text("utf-8"))
    assert (43, 5, 1) == (marker["count"], marker["seed"], marker["version"])
    assert CLASSES == sorted(marker["credits"])


def test_progress_counts_up_to_the_end(tmp_path: Path) -> None:
    seen: list[int] = []
    make_photo_folder(tmp_path / "photos", 20, progress=seen.append)
    assert list(range(1, 21)) == seen


def test_a_finished_folder_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    make_photo_folder(root, 20)
    (root / "train/cat/mine.txt").touch()
    seen: list[int] = []
    make_photo_folder(root, 20, progress=seen.append)
    assert [20] == seen
    assert (root / "train/cat/mine.txt").exists()


def test_an_empty_folder_and_missing_parents_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_photo_folder(tmp_path / "empty", 20)
    make_photo_folder(tmp_path / "a/b/photos", 20)
    assert 20 == len(contents(tmp_path / "empty")) == len(contents(tmp_path / "a/b/photos"))


def test_a_relative_path_is_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_photo_folder(Path("photos"), 20)
    assert ["photos"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("photos/thesis.txt", "mine", "other files"),
        ("photos", "mine", "a file"),
        ("photos/photos.json", "{}", "another count, seed or version"),
        ("photos/photos.json", "{", "another count, seed or version"),
    ],
)
def test_what_is_there_already_is_never_deleted(tmp_path: Path, file: str, text: str, found: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(DatasetError, match=found) as caught:
        make_photo_folder(tmp_path / "photos", 20)
    assert f"place:    {tmp_path / 'photos'}" in str(caught.value)
    assert text == (tmp_path / file).read_text()
    assert ["photos"] == [path.name for path in tmp_path.iterdir()]


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk/photos").mkdir(parents=True)
    (tmp_path / "photos").symlink_to(tmp_path / "disk/photos")
    make_photo_folder(tmp_path / "photos", 20)
    assert (tmp_path / "photos").is_symlink()
    assert 20 == len(contents(tmp_path / "disk/photos"))


def test_photos_of_another_seed_in_the_same_folder_are_refused(photos: Path) -> None:
    with pytest.raises(DatasetError, match="nothing, or 43 photographs of seed 6"):
        make_photo_folder(photos, 43, seed=6)


def test_an_interrupted_run_ends_at_once_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def count(photograph: Image.Image, rng: random.Random) -> Image.Image:
        made.append(1)
        return cut_out(photograph, rng)

    def interrupt(done: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("examples.photos.cut_out", count)
    with pytest.raises(KeyboardInterrupt):
        make_photo_folder(tmp_path / "photos", 3000, progress=interrupt)
    assert 5 <= len(made) < 500
    assert [] == list(tmp_path.iterdir())


def test_a_killed_run_leaves_no_half_folder_under_the_name(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    script = (
        "import os, signal, pathlib; from examples.photos import make_photo_folder\n"
        "kill = lambda done: os.kill(os.getpid(), signal.SIGKILL) if done == 5 else None\n"
        f"make_photo_folder(pathlib.Path({str(root)!r}), 30, progress=kill)\n"
    )
    assert -signal.SIGKILL == subprocess.run([sys.executable, "-c", script], check=False).returncode
    (left,) = tmp_path.iterdir()
    assert (True, ".partial") == (left.name.startswith(".photos."), left.suffix)
    make_photo_folder(root, 30)
    assert 30 == len(contents(root))


def test_when_two_runs_race_the_first_wins_and_the_second_is_content(tmp_path: Path) -> None:
    root = tmp_path / "photos"

    def overtake(done: int) -> None:
        if done == 20:
            make_photo_folder(root, 20)

    make_photo_folder(root, 20, progress=overtake)
    assert 20 == len(contents(root))
    assert ["photos"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_appears_while_pictures_are_made_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "photos"

    def get_in_the_way(done: int) -> None:
        if done == 20:
            root.mkdir()
            (root / "thesis.txt").touch()

    with pytest.raises(OSError, match="photos"):
        make_photo_folder(root, 20, progress=get_in_the_way)
    assert ["thesis.txt"] == [path.name for path in root.iterdir()]


@pytest.mark.parametrize("library", ["PIL", "skimage", "sklearn"])
def test_a_missing_library_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else find_spec(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[demo\]'"):
        make_photo_folder(tmp_path / "photos", 20)
    assert [] == list(tmp_path.iterdir())


def test_a_library_without_its_photographs_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty: Any = importlib.util.spec_from_loader("skimage", None, is_package=True)
    empty.submodule_search_locations = [str(tmp_path / "skimage")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(MissingExtraError, match=r"astronaut\.png is missing"):
        make_photo_folder(tmp_path / "photos", 20)


@pytest.mark.parametrize("count", [-1, 0, 19])
def test_fewer_than_two_pictures_a_class_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="20"):
        make_photo_folder(tmp_path / "photos", count)
