"""`headrace pack --on ray`: the same files as here, whatever is interrupted, and on whichever side it goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import MissingExtraError, UsageError
from headrace.data.convert import pack as packing
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.prepare.textures import make_textures
from tests import programs
from tests.data.convert.packing import COUNT, Case, files_in, hidden
from tests.data.formats.samples import usual, write

pytestmark = pytest.mark.usefixtures("small_pieces", "on_ray")

NAMES = {"arrow": "data", "parquet": "data", "hdf5": "data.h5"}
"""Formats of the kinds that there are for Ray: it makes pieces in the format of the target, or as Arrow, which are put
together here."""


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path, "arrow")
    yield made
    made.close()


def source_in(folder: Path) -> Path:
    return write("npz", folder / "source.npz", [usual("npz", COUNT, seed=1)])


def photos_in(folder: Path) -> Path:
    """Makes photographs, and returns the folder of those to train with."""
    make_textures(folder / "photos", 40)
    return folder / "photos" / "train"


@pytest.mark.thorough
@pytest.mark.parametrize("form", NAMES)
def test_the_files_and_the_manifest_are_those_of_a_local_pack(form: str, tmp_path: Path) -> None:
    source = source_in(tmp_path)
    options = PackOptions(form, shuffle=3)
    for on in ("local", "ray"):
        made = pack(source, tmp_path / on / NAMES[form], options, workers=2, on=on)  # type: ignore[arg-type]
        assert made.pieces > 2
    assert files_in(tmp_path / "ray") == files_in(tmp_path / "local")
    assert hidden(tmp_path / "ray") == []


@pytest.mark.thorough
def test_photos_are_shrunk_to_the_same_bytes(tmp_path: Path) -> None:
    photos = photos_in(tmp_path)
    options = PackOptions("webdataset", resize=48, shards=3)
    for on in ("local", "ray"):
        pack(photos, tmp_path / on / "data", options, workers=2, on=on)  # type: ignore[arg-type]
    assert files_in(tmp_path / "ray") == files_in(tmp_path / "local")


@pytest.mark.thorough
def test_a_relative_path_belongs_to_the_folder_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    pack("source.npz", "here/data", on="ray")
    pack("source.npz", "there/data")
    assert files_in(tmp_path / "here") == files_in(tmp_path / "there")


@pytest.mark.thorough
def test_a_bad_image_of_a_smaller_copy_is_named_as_by_a_local_pack(tmp_path: Path) -> None:
    photos = photos_in(tmp_path)
    one = sorted(photos.rglob("*.jpg"))[17]
    one.write_bytes(b"no image")
    told = []
    for on in ("local", "ray"):
        made = pack(photos, tmp_path / on / "data", PackOptions(resize=48, shards=3), on=on)  # type: ignore[arg-type]
        told.append(made.bad_samples)
    assert told[0] == told[1]
    assert [str(one) in line for line in told[0]] == [True]
    one.unlink()
    pack(photos, tmp_path / "ray" / "data", PackOptions(resize=48, shards=3), on="ray")


@pytest.mark.thorough
def test_bad_images_are_counted(tmp_path: Path) -> None:
    photos = photos_in(tmp_path)
    sorted(photos.rglob("*.jpg"))[17].write_bytes(b"no image")
    here = pack(photos, tmp_path / "local" / "data", PackOptions(shards=3))
    made = pack(photos, tmp_path / "ray" / "data", PackOptions(shards=3), on="ray")
    assert (made.bad, made.bad_samples) == (1, here.bad_samples)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("then", ["local", "ray"])
def test_after_a_kill_of_the_command_either_side_goes_on(case: Case, number: int, then: str) -> None:
    old = case.put_old_data()
    child = case.child("--on", "ray", stop=("piece", 4), workers=2)
    child.wait_until_there()
    status, text = child.end(number)
    assert status != 0
    assert "Traceback" not in text
    assert case.made() == old
    made = pack(case.source, case.target, PackOptions("arrow"), workers=2, on=then)  # type: ignore[arg-type]
    assert made.kept >= 3
    assert case.made() == case.undisturbed()
    assert hidden(case.target.parent) == []


@pytest.mark.thorough
def test_what_a_local_pack_has_left_is_finished_on_ray(case: Case) -> None:
    child = case.child(stop=("piece", 4))
    child.wait_until_there()
    child.end(signal.SIGKILL)
    made = pack(case.source, case.target, PackOptions("arrow"), on="ray")
    assert made.kept >= 3
    assert case.made() == case.undisturbed()


@pytest.mark.thorough
def test_the_command_packs_on_ray(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    for on in ("local", "ray"):
        done = programs.run(["-m", "headrace", "pack", source, tmp_path / on / "data", "--on", on])
        assert (done.returncode, done.stderr.strip()) == (0, "")
    assert files_in(tmp_path / "ray") == files_in(tmp_path / "local")


def test_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="on=") as caught:
        pack(source_in(tmp_path), tmp_path / "data", on="slurm")  # type: ignore[arg-type]
    assert "'local' or 'ray'" in str(caught.value)


def test_without_ray_nothing_is_read_before_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("the source was opened")

    monkeypatch.setattr(packing, "_plan", never)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[ray\]"):
        pack(source_in(tmp_path), tmp_path / "data", on="ray")
