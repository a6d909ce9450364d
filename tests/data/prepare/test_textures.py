"""The pictures to try things on: the same for the same count, and complete or not there at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace.core.errors import DatasetError, MissingExtraError, UsageError
from headrace.data.prepare.textures import CLASSES, make_textures, texture


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.jpg")}


@pytest.fixture(scope="module")
def textures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """43 pictures; tests only read them."""
    root = tmp_path_factory.mktemp("made") / "textures"
    make_textures(root, 43)
    return root


def test_each_class_has_training_and_validation_pictures(textures: Path) -> None:
    for split, per_class in (("train", {3, 4}), ("val", {1})):
        assert [f"texture-{kind}" for kind in range(CLASSES)] == sorted(
            folder.name for folder in (textures / split).iterdir()
        )
        assert per_class == {len(list(folder.iterdir())) for folder in (textures / split).iterdir()}
    assert 43 == len(contents(textures))


def test_pictures_are_rgb_jpegs_and_no_two_are_the_same(textures: Path) -> None:
    for path in textures.rglob("*.jpg"):
        with Image.open(path) as image:
            assert ("JPEG", "RGB", (500, 375)) == (image.format, image.mode, image.size)
    assert 43 == len(set(contents(textures).values()))


def test_pictures_of_one_class_resemble_each_other_more_than_those_of_others() -> None:
    colours = {number: np.asarray(texture(number)).mean((0, 1)) for number in (0, 10, 20, 3, 13, 23)}
    within = max(np.abs(colours[0] - colours[10]).max(), np.abs(colours[3] - colours[13]).max())
    assert within < np.abs(colours[0] - colours[3]).max()


def test_pictures_of_one_count_are_the_same(textures: Path, tmp_path: Path) -> None:
    make_textures(tmp_path / "again", 43)
    assert contents(textures) == contents(tmp_path / "again")


def test_progress_counts_up_to_the_end(tmp_path: Path) -> None:
    seen: list[int] = []
    make_textures(tmp_path / "textures", 20, progress=seen.append)
    assert list(range(1, 21)) == seen


def test_a_finished_folder_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "textures"
    make_textures(root, 20)
    (root / "train/texture-1/mine.txt").touch()
    seen: list[int] = []
    make_textures(root, 20, progress=seen.append)
    assert [20] == seen
    assert (root / "train/texture-1/mine.txt").exists()


def test_an_empty_folder_and_missing_parents_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_textures(tmp_path / "empty", 20)
    make_textures(tmp_path / "a/b/textures", 20)
    assert 20 == len(contents(tmp_path / "empty")) == len(contents(tmp_path / "a/b/textures"))


def test_a_relative_path_is_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_textures(Path("textures"), 20)
    assert ["textures"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("textures/thesis.txt", "mine", "other files"),
        ("textures", "mine", "a file"),
        ("textures/textures.json", "{}", "another count or version"),
        ("textures/textures.json", "{", "another count or version"),
    ],
)
def test_what_is_there_already_is_never_deleted(tmp_path: Path, file: str, text: str, found: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(DatasetError, match=found) as caught:
        make_textures(tmp_path / "textures", 20)
    assert f"place:    {tmp_path / 'textures'}" in str(caught.value)
    assert text == (tmp_path / file).read_text()
    assert ["textures"] == [path.name for path in tmp_path.iterdir()]


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk/textures").mkdir(parents=True)
    (tmp_path / "textures").symlink_to(tmp_path / "disk/textures")
    make_textures(tmp_path / "textures", 20)
    assert (tmp_path / "textures").is_symlink()
    assert 20 == len(contents(tmp_path / "disk/textures"))


def test_another_count_in_the_same_folder_is_refused(textures: Path) -> None:
    with pytest.raises(DatasetError, match="nothing, or 44 of its pictures"):
        make_textures(textures, 44)


def test_an_interrupted_run_ends_at_once_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(number: int) -> Image.Image:
        made.append(number)
        return texture(number)

    def interrupt(done: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("headrace.data.prepare.textures.texture", counted)
    with pytest.raises(KeyboardInterrupt):
        make_textures(tmp_path / "textures", 3000, progress=interrupt)
    assert 5 <= len(made) < 500
    assert [] == list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_killed_run_leaves_no_half_folder_under_the_name(tmp_path: Path) -> None:
    root = tmp_path / "textures"
    script = (
        "import os, signal, pathlib; from headrace.data.prepare.textures import make_textures\n"
        "kill = lambda done: os.kill(os.getpid(), signal.SIGKILL) if done == 5 else None\n"
        f"make_textures(pathlib.Path({str(root)!r}), 30, progress=kill)\n"
    )
    assert -signal.SIGKILL == subprocess.run([sys.executable, "-c", script], check=False).returncode
    (left,) = tmp_path.iterdir()
    assert (True, ".partial") == (left.name.startswith(".textures."), left.suffix)
    make_textures(root, 30)
    assert 30 == len(contents(root))


def test_when_two_runs_race_the_first_wins_and_the_second_is_content(tmp_path: Path) -> None:
    root = tmp_path / "textures"

    def overtake(done: int) -> None:
        if done == 20:
            make_textures(root, 20)

    make_textures(root, 20, progress=overtake)
    assert 20 == len(contents(root))
    assert ["textures"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_appears_while_pictures_are_made_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "textures"

    def get_in_the_way(done: int) -> None:
        if done == 20:
            root.mkdir()
            (root / "thesis.txt").touch()

    with pytest.raises(OSError, match="textures"):
        make_textures(root, 20, progress=get_in_the_way)
    assert ["thesis.txt"] == [path.name for path in root.iterdir()]


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[images\]'"):
        make_textures(tmp_path / "textures", 20)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [-1, 0, 19])
def test_too_few_pictures_are_an_error(tmp_path: Path, count: int) -> None:
    with pytest.raises(UsageError, match="20 or more"):
        make_textures(tmp_path / "textures", count)
