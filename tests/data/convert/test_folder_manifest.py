"""The manifest of a folder of files lies beside the folder: others that list it find classes and samples alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import headrace
from headrace.core.errors import FormatError
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.convert.verify import verify
from headrace.data.formats.registry import open_reader
from headrace.measure.bench.disk import footprint_of
from tests.data.convert.buckets import Bucket
from tests.data.formats.samples import all_of, assert_same, read, usual, write
from tests.servers.faulty import FaultyServer
from tests.storage.conftest import no_credentials_of_the_user  # noqa: F401 - a fixture, for these tests, too

CLASSES = ["cat", "dog"]
MANIFEST = "photos.headrace.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write("arrow", tmp_path / "source.arrow", [usual("folder")])


@pytest.fixture
def packed(source: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "photos"
    pack(source, path, PackOptions("folder"), workers=1)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def move_inside(path: Path) -> None:
    """Has a folder look as earlier versions have packed it."""
    path.with_name(MANIFEST).rename(path / "headrace.json")


@pytest.mark.quick
@pytest.mark.parametrize("is_old", [True, False])
def test_samples_come_back_in_their_order(packed: Path, source: Path, is_old: bool) -> None:
    assert names_in(packed) == CLASSES
    assert names_in(packed.parent) == ["photos", MANIFEST]
    if is_old:
        move_inside(packed)
    expected = [(sample["data"], sample["label"]) for sample in headrace.open(source)]
    for given in (packed, f"{packed}/", packed.as_uri()):
        assert [(sample["data"], sample["label"]) for sample in headrace.open(given)] == expected
    back = packed.with_name("back.npz")
    pack(packed, back, PackOptions("npz"), workers=1)
    assert_same(read(back), read(source))
    assert verify(packed).sound
    footprint = footprint_of(str(packed))
    assert (footprint.files, footprint.has_manifest) == (len(expected) + 1, True)


def test_a_copy_with_its_manifest_is_the_same_data(packed: Path, source: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "copy")
    shutil.copyfile(packed.with_name(MANIFEST), tmp_path / "copy.headrace.json")
    assert_same(read(tmp_path / "copy"), read(source))
    assert verify(tmp_path / "copy").sound


def test_verify_finds_what_is_damaged_missing_or_too_much(packed: Path) -> None:
    files = sorted(path for path in packed.rglob("*") if path.is_file())
    files[0].write_bytes(b"other")
    files[1].unlink()
    (packed / "cat" / "mine.txt").write_text("mine")
    problems = "\n".join(verify(packed).problems)
    for file, problem in ((files[0], "another"), (files[1], "missing"), (packed / "cat" / "mine.txt", "not in the")):
        assert any(file.name in line and problem in line for line in problems.splitlines()), problems


@pytest.mark.parametrize("is_old", [True, False])
def test_a_packed_folder_is_replaced(packed: Path, source: Path, tmp_path: Path, is_old: bool) -> None:
    if is_old:
        move_inside(packed)
    other = write("arrow", tmp_path / "other.arrow", [usual("folder", 7, seed=2)])
    pack(other, packed, PackOptions("folder"), workers=1)
    assert names_in(packed.parent) == ["photos", MANIFEST]
    assert_same(read(packed), read(other))
    # A form with its manifest inside takes the one beside it away.
    pack(source, packed, PackOptions("memmap"), workers=1)
    assert names_in(packed.parent) == ["photos"]
    assert_same(read(packed), read(source))


def test_what_the_manifest_does_not_name_is_never_lost(packed: Path, source: Path) -> None:
    (packed / "cat" / "mine.txt").write_text("mine")
    with pytest.raises(FormatError, match="a folder with 1 files or folders, which headrace did not pack"):
        pack(source, packed, PackOptions("folder"), workers=1)
    assert (packed / "cat" / "mine.txt").read_text() == "mine"


def test_other_data_beside_an_old_manifest_are_refused_with_the_fix(packed: Path) -> None:
    shutil.rmtree(packed)
    (packed / "cat").mkdir(parents=True)
    (packed / "cat" / "1.png").write_bytes(b"1")
    with pytest.raises(FormatError, match=f"if these are other data, remove .*{MANIFEST}"):
        headrace.open(packed)


def test_a_bucket_holds_the_manifest_beside_the_folder(bucket: Bucket, source: Path) -> None:
    def pack_there(format: str) -> None:
        pack(source, bucket.url("photos"), PackOptions(format), workers=1, target_options=bucket.options)

    def names() -> set[str]:
        return {name.partition("/")[2].partition("/")[0] or name for name in bucket.objects()}

    pack_there("memmap")
    assert MANIFEST not in bucket.objects()
    pack_there("folder")
    assert names() == {*CLASSES, MANIFEST}
    assert_same(all_of(open_reader(bucket.url("photos"), options=bucket.options)), read(source))
    found = verify(bucket.url("photos"), options=bucket.options)
    assert (found.sound, found.recorded) == (True, 20)
    footprint = footprint_of(bucket.url("photos"), bucket.options)
    assert (footprint.files, footprint.has_manifest) == (21, True)

    # As earlier versions have written it.
    text = bucket.objects()[MANIFEST]
    bucket.store.write(f"{bucket.folder}/photos/headrace.json", [text])
    bucket.store.delete(f"{bucket.folder}/{MANIFEST}")
    assert_same(all_of(open_reader(bucket.url("photos"), options=bucket.options)), read(source))
    pack_there("folder")
    assert names() == {*CLASSES, MANIFEST}
    pack_there("memmap")
    assert MANIFEST not in bucket.objects()
    assert json.loads(bucket.objects()["photos/headrace.json"])["format"] == "memmap"


def test_other_objects_are_not_taken_for_packed_ones(bucket: Bucket, source: Path) -> None:
    bucket.store.write(f"{bucket.folder}/photos/mine.txt", [b"mine"])
    with pytest.raises(FormatError, match="which headrace did not pack"):
        pack(source, bucket.url("photos"), PackOptions("folder"), workers=1, target_options=bucket.options)


@pytest.mark.quick
@pytest.mark.parametrize("is_old", [True, False])
def test_a_server_that_lists_nothing_serves_a_packed_folder(
    faulty_server: FaultyServer, packed: Path, source: Path, is_old: bool
) -> None:
    if is_old:
        move_inside(packed)
    for file in packed.parent.rglob("*"):
        if file.is_file():
            faulty_server.put("b", str(file.relative_to(packed.parent)), file.read_bytes())
    url = f"{faulty_server.url}/b/photos"
    assert_same(all_of(open_reader(url)), read(source))
    assert verify(url).sound
