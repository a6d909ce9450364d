"""Entries of tar shards as other programs write them: holes, links, sizes of pax, capitals, what is no sample."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import FormatError

SPARSE = {
    "gnu": ("--format=gnu",),
    "pax 0.0": ("--format=posix", "--sparse-version=0.0"),
    "pax 0.1": ("--format=posix", "--sparse-version=0.1"),
    "pax 1.0": ("--format=posix", "--sparse-version=1.0"),
}
HOLE = 100_000


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    """Adds an entry; fields: others of its header."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def with_holes(folder: Path) -> dict[str, bytes]:
    """Makes files, of which every second one begins with a hole. Returns their contents by the name of the sample."""
    folder.mkdir()
    found = {}
    for number in range(6):
        file = folder / f"{number:03}.mask"
        with file.open("wb") as stream:
            if number % 2:
                stream.seek(HOLE)
            stream.write(b"end%d" % number)
            if number % 3 == 2:
                stream.truncate(2 * HOLE)
        found[f"{number:03}"] = file.read_bytes()
        np.save(folder / f"{number:03}.npy", np.arange(number))
    return found


@pytest.mark.quick
@pytest.mark.parametrize("kind", SPARSE)
def test_files_with_holes_are_read_whole(kind: str, tmp_path: Path) -> None:
    expected = with_holes(tmp_path / "files")
    names = sorted(file.name for file in (tmp_path / "files").iterdir())
    path = tmp_path / "x.tar"
    subprocess.run(["tar", *SPARSE[kind], "--sparse", "-cf", path, "-C", tmp_path / "files", *names], check=True)
    assert path.stat().st_size < 3 * HOLE
    dataset = headrace.open(path)
    assert {sample["__key__"]: sample["mask"] for sample in dataset} == expected
    assert [len(sample["npy"]) for sample in dataset] == list(range(6))
    assert [dataset[number]["mask"] for number in (5, 0, 3)] == [expected[f"{n:03}"] for n in (5, 0, 3)]
    assert {sample["__key__"]: sample["mask"] for sample in dataset.stream()} == expected
    batches = list(headrace.DataLoader(dataset.stream(), 4, num_workers=1))
    assert [bytes(mask) for batch in batches for mask in batch["mask"]] == list(expected.values())
    assert headrace.verify(path).sound
    headrace.pack(path, tmp_path / "y.tar", headrace.PackOptions("webdataset"), workers=1)
    assert {sample["__key__"]: sample["mask"] for sample in headrace.open(tmp_path / "y.tar")} == expected


def test_bsdtar_stores_holes_by_itself(tmp_path: Path) -> None:
    if shutil.which("bsdtar") is None:
        pytest.skip("bsdtar is not installed (libarchive-tools)")
    expected = with_holes(tmp_path / "files")
    names = sorted(file.name for file in (tmp_path / "files").iterdir())
    subprocess.run(["bsdtar", "-cf", tmp_path / "x.tar", "-C", tmp_path / "files", *names], check=True)
    assert {sample["__key__"]: sample["mask"] for sample in headrace.open(tmp_path / "x.tar")} == expected


def test_a_hole_that_would_take_all_memory_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "0.mask").open("wb") as file:
        file.truncate(1 << 40)
    subprocess.run(["tar", "--sparse", "-cf", tmp_path / "x.tar", "-C", tmp_path, "0.mask"], check=True)
    with pytest.raises(FormatError, match="holes"):
        headrace.open(tmp_path / "x.tar")


def test_a_shard_with_holes_that_was_damaged_is_not_cut_short_in_silence(tmp_path: Path) -> None:
    with_holes(tmp_path / "files")
    names = sorted(file.name for file in (tmp_path / "files").iterdir())
    path = tmp_path / "x.tar"
    subprocess.run(["tar", "--sparse", "-cf", path, "-C", tmp_path / "files", *names], check=True)
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-2].offset
    data = bytearray(path.read_bytes())
    data[last : last + 8] = b"damaged!"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="damaged"):
        len(headrace.open(path))


def test_hard_links_are_the_files_that_they_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "000.mask", b"the same")
        for number in range(1, 4):
            add(archive, f"{number:03}.mask", type=tarfile.LNKTYPE, linkname="000.mask")
        add(archive, "004.mask", type=tarfile.SYMTYPE, linkname="000.mask")
    dataset = headrace.open(tmp_path / "x.tar")
    assert [sample["mask"] for sample in dataset] == [b"the same"] * 4
    assert "004.mask" in caplog.text


def test_a_size_that_only_pax_tells_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(3):
            add(archive, f"{number}.txt", b"text %d" % number, pax_headers={"size": "6"})
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        headers = [member.offset_data - 512 for member in archive.getmembers()]
    for at in headers:
        data[at + 124 : at + 136] = b"00000000000\0"
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    assert [sample["txt"] for sample in headrace.open(path)] == ["text 0", "text 1", "text 2"]


def test_endings_are_in_small_letters_and_what_is_no_sample_is_none(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "__meta__/about.json", b"{}")
        add(archive, "0.JPG", b"a")
        add(archive, "0.CLS", b"3")
        add(archive, "1.jpg", b"b")
        add(archive, "1.cls", b"4")
    dataset = headrace.open(tmp_path / "x.tar", decode=False)
    assert [(sample["jpg"], sample["cls"]) for sample in dataset] == [(b"a", 3), (b"b", 4)]


def test_a_pickle_beside_wanted_files_is_not_in_the_way(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "0.txt", b"a")
        add(archive, "0.pyd", b"a pickle")
    assert headrace.open(tmp_path / "x.tar", columns=["txt"])[0]["txt"] == "a"
    with pytest.raises(FormatError, match="pickles"):
        headrace.open(tmp_path / "x.tar")


def test_files_without_an_ending_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def shard(name: str, *files: str) -> None:
        with tarfile.open(tmp_path / name, "w") as archive:
            for file in files:
                add(archive, file, b"a")

    shard("0.tar", "README", ".hidden", "0.txt")
    shard("1.tar", "LICENSE")
    shard("2.tar", "README", "1.txt")
    assert len(headrace.open(tmp_path / "0.tar")) == 1
    assert ["0.tar: files whose names have no ending are passed over, here and in other shards: 1, such as README"] == [
        line.removeprefix(f"{tmp_path}/") for line in caplog.messages
    ]

    caplog.clear()
    assert [sample["__key__"] for sample in headrace.open(tmp_path)] == ["0", "1"]
    assert ["0.tar", "1.tar"] == [line.removeprefix(f"{tmp_path}/").split(":")[0] for line in caplog.messages]

    shard("alone.tar", "train/000", "train/001")
    with pytest.raises(FormatError, match="2 without an ending in their names, such as train/000"):
        headrace.open(tmp_path / "alone.tar")
