"""Tar shards of tarfile, GNU tar, bsdtar and webdataset. tarfile or webdataset read them back."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.clients.other_tools.comparison import Written
from tests.clients.other_tools.tools import tool

SAMPLES = 4
ENDING = "mask"
"""The column that is compared: bytes to everybody."""


def files_of(folder: Path, holes: bool = False, stem: str = "{:03d}") -> dict[str, bytes]:
    """Writes two files a sample, and returns their contents by name. holes: between the ends of one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for sample in range(SAMPLES):
        name = stem.format(sample)
        path = folder / f"{name}.{ENDING}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(b"begin %d" % sample)
            if holes:
                file.seek(1 << 20)
            file.write(b"end")
        found[path.name] = path.read_bytes()
        (folder / f"{name}.txt").write_text(f"text {sample}")
    return found


def read(path: Path) -> list[bytes]:
    """Returns the files of the column as tarfile reads them, links and holes resolved."""
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.name.lower().endswith(f".{ENDING}")]
        opened = [archive.extractfile(member) for member in members if member.isreg() or member.islnk()]
        return [file.read() for file in opened if file is not None]


def names_in(folder: Path) -> list[str]:
    """Returns the names of the files of a folder, in order."""
    return sorted(path.name for path in folder.iterdir())


def run(*command: str, folder: Path) -> None:
    """Runs a program in a folder."""
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, timeout=30, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )


TAR = {
    "ustar": ["--format=ustar"],
    "gnu": ["--format=gnu"],
    "pax": ["--format=posix"],
    "v7": ["--format=v7"],
    "oldgnu": ["--format=oldgnu"],
    "numbers of owners": ["--numeric-owner", "--owner=70000000", "--group=80000000"],
    "blocks of 512": ["-b1"],
    "a volume label": ["--label=shard"],
    "pax with times": ["--format=posix", "--pax-option=globexthdr.name=/tmp/g", "--mtime=2024-02-29 10:00:00.5"],
    "pax with a comment for all": ["--format=posix", "--pax-option=comment=made by a tool"],
    "extended attributes": ["--xattrs", "--format=posix"],
    "modes": ["--mode=a-rwx"],
    "a directory's name in front": ["--transform=s,^,a/b/,"],
    "names with ./": ["--transform=s,^,./,"],
}
SPARSE = {
    f"holes, {name}": ["--sparse", *options]
    for name, options in {
        "gnu": ["--format=gnu"],
        "pax 0.0": ["--format=posix", "--sparse-version=0.0"],
        "pax 0.1": ["--format=posix", "--sparse-version=0.1"],
        "pax 1.0": ["--format=posix", "--sparse-version=1.0"],
    }.items()
}


@tool("webdataset", "GNU tar", "-tar")
def gnu_tar(folder: Path) -> Iterator[Written]:
    number = 0
    for kinds, holes in ((TAR, False), (SPARSE, True)):
        source = folder / f"holes-{holes}"
        files_of(source, holes)
        for kind, options in kinds.items():
            path = folder / f"{(number := number + 1)}.tar"
            run("tar", "-cf", str(path), *options, *names_in(source), folder=source)
            yield Written(kind, path, read(path), ENDING, names=("holes", "sparse"))
    stems = {
        "names of 120 bytes": "n" * 110 + "{:03d}",
        "names with folders of 200 bytes": "f" * 90 + "/" + "g" * 90 + "/{:03d}",
        "names of UTF-8": "Grüße-日本-{:03d}",
        "names with spaces": "a b {:03d}",
    }
    for kind, stem in stems.items():
        for form in ("gnu", "posix", "ustar"):
            source = folder / f"{(number := number + 1)}"
            files_of(source, stem=stem)
            path = folder / f"{number}.tar"
            names = sorted(str(one.relative_to(source)) for one in source.rglob("*") if one.is_file())
            try:
                run("tar", "-cf", str(path), f"--format={form}", *names, folder=source)
            except subprocess.CalledProcessError:
                continue
            yield Written(f"{kind}, {form}", path, read(path), ENDING)
    source = folder / "again"
    files_of(source)
    path = folder / "folders.tar"
    run("tar", "-cf", str(path), "again", folder=folder)
    yield Written("a folder, in no order", path, read(path), ENDING, names=("no again/",))
    path = folder / "appended.tar"
    names = names_in(source)
    run("tar", "-cf", str(path), *names[:4], folder=source)
    run("tar", "-rf", str(path), *names[4:], folder=source)
    yield Written("files appended", path, read(path), ENDING)
    path = folder / "joined.tar"
    path.write_bytes((folder / "1.tar").read_bytes() * 2)
    yield Written("two archives end to end", path, read(path), ENDING)
    path = folder / "concatenated.tar"
    path.write_bytes((folder / "1.tar").read_bytes())
    other = folder / "other"
    files_of(other, stem="second-{:03d}")
    run("tar", "-cf", str(folder / "more.tar"), *names_in(other), folder=other)
    run("tar", "-Af", str(path), "more.tar", folder=folder)
    yield Written("archives concatenated by tar -A", path, read(path), ENDING)
    for ending, option in {"gz": "-z", "bz2": "-j", "xz": "-J"}.items():
        path = folder / f"packed.tar.{ending}"
        run("tar", option, "-cf", str(path), *names, folder=source)
        yield Written(f"packed, {ending}", path, read(path), ENDING, names=("gzip", "bzip2", "xz", "compress"))


@tool("webdataset", "bsdtar", "-bsdtar")
def bsdtar(folder: Path) -> Iterator[Written]:
    for holes in (False, True):
        source = folder / f"holes-{holes}"
        files_of(source, holes)
        for form in ("default", "ustar", "pax", "gnutar", "v7", "posix"):
            path = folder / f"{form}-{holes}.tar"
            option = [] if form == "default" else [f"--format={form}"]
            run("bsdtar", "-cf", str(path), *option, *names_in(source), folder=source)
            yield Written(f"{form}, holes {holes}", path, read(path), ENDING, names=("holes", "sparse"))
    source = folder / "long"
    files_of(source, stem="ü" * 60 + "{:03d}")
    path = folder / "long.tar"
    run("bsdtar", "-cf", str(path), *names_in(source), folder=source)
    yield Written("long names of UTF-8", path, read(path), ENDING)


def members(kind: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Returns the members of an archive, two a sample and what the kind says."""
    for sample in range(SAMPLES):
        data = b"mask %d" % sample
        info = tarfile.TarInfo(f"{sample:03d}.{ENDING.upper() if kind == 'endings of capitals' else ENDING}")
        info.size = len(data)
        _change(info, kind, sample)
        yield info, data[: info.size]
        if kind != "hard links, a file a sample":
            yield _small(f"{sample:03d}.txt"), b"a"
    if kind in MORE:
        more = tarfile.TarInfo("zzz")
        more.type = MORE[kind]
        more.linkname = "000.txt" if kind == "a symbolic link" else ""
        yield more, b""
    for name in BESIDE.get(kind, ()):
        yield _small(name), b"x"


def _change(info: tarfile.TarInfo, kind: str, sample: int) -> None:
    """Makes a member what the kind says."""
    if kind in LINKS and sample:
        info.type, info.linkname, info.size = LINKS[kind], f"000.{ENDING}", 0
    elif kind in TYPES:
        info.type = TYPES[kind]
    elif kind == "comments of pax":
        info.pax_headers = {"comment": "ü" * 300}
    elif kind == "size in pax":
        info.pax_headers = {"size": str(info.size)}


def _small(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = 1
    return info


LINKS = {
    "hard links": tarfile.LNKTYPE, "hard links, a file a sample": tarfile.LNKTYPE, "symbolic links": tarfile.SYMTYPE,
}  # fmt: skip
TYPES = {"contiguous files": tarfile.CONTTYPE, "old files": tarfile.AREGTYPE}
BESIDE = {"a file of webdataset's own": ("__meta__/x.json",), "files of macOS": (f"._000.{ENDING}", ".DS_Store")}
MORE = {
    "a folder": tarfile.DIRTYPE, "a pipe": tarfile.FIFOTYPE, "a device": tarfile.CHRTYPE,
    "a symbolic link": tarfile.SYMTYPE,
}  # fmt: skip
KINDS = (
    *MORE, "plain", "hard links", "hard links, a file a sample", "symbolic links", "contiguous files", "old files",
    "comments of pax", "size in pax", "endings of capitals", "a file of webdataset's own", "files of macOS",
)  # fmt: skip


@tool("webdataset", "tarfile")
def python_tar(folder: Path) -> Iterator[Written]:
    for kind in KINDS:
        for form in ("USTAR", "GNU", "PAX"):
            path = folder / f"{kind}-{form}.tar"
            with tarfile.open(path, "w", format=getattr(tarfile, f"{form}_FORMAT")) as archive:
                for info, data in members(kind):
                    archive.addfile(info, io.BytesIO(data))
            values = [value for value in read(path) if value != b"x"]
            yield Written(f"{kind}, {form}", path, values, ENDING, names=("link", "capital"))
    path = folder / "base256.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in members("plain"):
            info.uid = 2**40
            archive.addfile(info, io.BytesIO(data))
    yield Written("numbers of base 256", path, read(path), ENDING)
    path = folder / "sizes.tar"
    path.write_bytes(_sizes_in_pax_alone((folder / "size in pax-PAX.tar").read_bytes()))
    yield Written("size in pax alone", path, read(path), ENDING)
    path = folder / "empty.tar"
    with tarfile.open(path, "w"):
        pass
    yield Written("no files", path, [], "__key__")
    path = folder / "cut.tar"
    whole = (folder / "plain-PAX.tar").read_bytes().rstrip(b"\0")
    path.write_bytes(whole + b"\0" * (-len(whole) % 512))
    yield Written("no blocks of zeros at the end", path, read(path), ENDING)


def _sizes_in_pax_alone(data: bytes) -> bytes:
    """Returns an archive whose headers have no sizes, as tarfile writes files from 8 GiB on."""
    parts = bytearray(data)
    at = parts.find(f"000.{ENDING}".encode())
    while at >= 0:
        if at % 512 == 0 and parts[at + 257 : at + 262] == b"ustar":
            parts[at + 124 : at + 135] = b"0" * 11
            parts[at + 148 : at + 156] = b" " * 8
            parts[at + 148 : at + 155] = b"%06o\0" % sum(parts[at : at + 512])
        at = parts.find(f".{ENDING}".encode(), at + 5) - len("000")
    return bytes(parts)


PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe"
    "92ef0000000049454e44ae426082"
)
"""A PNG of one red pixel."""

VALUES: Mapping[str, list[Any]] = {
    "cls": [0, 7, -3], "txt": ["a", "Grüße", ""], "json": [{"a": [1, "ü"]}, [], 5], "npy": [np.ones((2, 3), "f4")] * 3,
    "jpg": [PICTURE] * 3, "bin": [b"", b"\0\1", b"a"], "text": ["a", "b", ""], "id": [1, 2, 3],
    "index": [5, 6, 7], "mp": [{"a": 1}] * 3, "cbor": [], "pyd": [{"a": 1}] * 3, "pth": [[1, 2]] * 3,
    "npz": [{"x": np.arange(3)}] * 3, "left.png": [PICTURE] * 3, "transcript": ["a", "b", "c"],
    "cls2": [1, 2, 3], "inp": [1, 2, 3], "jsonl": [[{"a": 1}]] * 3,
}  # fmt: skip
"""For each ending, the values that webdataset's writer gets."""


@tool("webdataset", "webdataset", "webdataset")
def webdataset_files(folder: Path) -> Iterator[Written]:
    import webdataset

    for ending, values in VALUES.items():
        path = folder / f"{ending}.tar"
        try:
            with webdataset.TarWriter(str(path)) as writer:
                for number, value in enumerate(values):
                    writer.write({"__key__": f"{number:03d}", ending: value, "row.cls": number})
        except (ValueError, AssertionError, ImportError, TypeError, AttributeError):
            continue
        if not values:
            continue
        found = [sample[ending] for sample in webdataset.WebDataset(str(path), shardshuffle=False)]
        if ending in ("cls", "npy"):
            decoded = webdataset.WebDataset(str(path), shardshuffle=False).decode()
            found = [np.int64(one[ending]) if ending == "cls" else one[ending] for one in decoded]
        if ending in ("txt", "json"):
            # JSON stays text, which the user parses.
            found = [one.decode() for one in found]
        yield Written(f".{ending}", path, found, ending, names=("pickle",), options={"decode": False})
    path = folder / "uneven.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(4):
            row = {"__key__": str(number), ENDING: b"a"}
            writer.write(row | ({"txt": "a"} if number != 2 else {}))
    yield Written("a sample that lacks another file", path, [b"a"] * 4, ENDING, names=("2.txt",))
    path = folder / "latin.tar"
    with webdataset.TarWriter(str(path)) as writer:
        writer.write({"__key__": "0", "txt": "Grüße".encode("latin-1")})
    yield Written("text of Latin-1", path, ["Grüße"], "txt")
    path = folder / "twice.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.mask", "a.txt", "b.mask", "b.txt", "a.mask", "a.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    yield Written("a name twice, apart", path, [b"1"] * 3, ENDING)
