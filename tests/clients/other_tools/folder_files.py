"""Folders with a file for each sample, as people and tools fill them. Python reads the files back."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.clients.other_tools.comparison import Written
from tests.clients.other_tools.tools import tool

TEXTS: Mapping[str, tuple[bytes, str]] = {
    "UTF-8": ("Grüße 日本 🙂".encode(), "utf-8"),
    "a mark of UTF-8": (codecs.BOM_UTF8 + "Grüße".encode(), "utf-8"),
    "UTF-16": ("Grüße".encode("utf-16"), "utf-16"),
    "Latin-1": ("Grüße".encode("latin-1"), "latin-1"),
    "lines end in CR LF": (b"a\r\nb\r\n", "utf-8"),
    "nothing": (b"", "utf-8"),
    "a NUL": (b"a\0b", "utf-8"),
}


@tool("folder", "text files")
def text_files(folder: Path) -> Iterator[Written]:
    for kind, (data, encoding) in TEXTS.items():
        path = folder / kind
        path.mkdir()
        for number in range(3):
            (path / f"{number}.txt").write_bytes(data)
        words = ("UTF-8", "utf-8", "encod") if encoding != "utf-8" else ()
        yield Written(kind, path, [data.decode(encoding)] * 3, "text", words)


NAMES = {
    "names of UTF-8": "Grüße {}.bin", "names with spaces": " a {} .bin", "names with a line": "a\n{}.bin",
    "names with dots": "a.b.{}.bin", "no endings": "file{}", "endings of capitals": "{}.BIN",
    "long names": "n" * 200 + "{}.bin", "names with percent signs": "%41{}.bin", "names that are numbers": "{}",
}  # fmt: skip


@tool("folder", "files by hand")
def any_files(folder: Path) -> Iterator[Written]:
    contents = [b"", b"\0\xff", b"x" * 1000]
    for kind, name in NAMES.items():
        path = folder / kind
        path.mkdir()
        for number, data in enumerate(contents):
            (path / name.format(number)).write_bytes(data)
        yield Written(kind, path, contents, "data")
        yield Written(f"{kind}, paths", path, [name.format(number) for number in range(3)], "path")
    path = folder / "bytes"
    path.mkdir()
    for number, data in enumerate(contents):
        Path(str(path), f"\udcff{number}.bin").write_bytes(data)
    yield Written("names that are no UTF-8", path, contents, "data")

    path = folder / "classes"
    for number, label in enumerate(("dog", "cat", "a/b")):
        (path / label).mkdir(parents=True)
        (path / label / "0.bin").write_bytes(contents[number])
    yield Written("classes", path, [contents[2], contents[1], contents[0]], "data")
    yield Written("classes, labels", path, [0, 1, 2], "label")
    path = folder / "hidden"
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "x.bin").write_bytes(b"x")
    (path / ".DS_Store").write_bytes(b"x")
    (path / "0.bin").write_bytes(b"a")
    yield Written("hidden files", path, [b"a"], "data")
    path = folder / "links"
    path.mkdir()
    (path / "0.bin").write_bytes(b"a")
    (path / "1.bin").symlink_to(path / "0.bin")
    yield Written("a link to a file", path, [b"a", b"a"], "data")
    path = folder / "folder links"
    path.mkdir()
    (path / "0.bin").write_bytes(b"a")
    (path / "more").symlink_to(folder / "links")
    yield Written("a link to a folder", path, [b"a", b"a", b"a"], "data")
    path = folder / "broken links"
    path.mkdir()
    (path / "0.bin").write_bytes(b"a")
    (path / "1.bin").symlink_to(path / "gone")
    yield Written("a link to nothing", path, [b"a", None], "data", ("1.bin",))
    for ending, column in {"wav": "audio", "flac": "audio", "mp3": "audio", "md": "text", "mp4": "data"}.items():
        path = folder / ending
        path.mkdir()
        (path / f"0.{ending}").write_bytes(b"RIFFabc")
        value = "RIFFabc" if column == "text" else b"RIFFabc"
        yield Written(f".{ending}", path, [value], column)
