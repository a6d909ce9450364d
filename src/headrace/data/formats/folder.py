"""A folder of files, one a sample: images, audio, text, or anything. Sub-folders, where there are any, are the labels.

Columns: `path` (relative to the folder), the content (`image`, `audio`, `text` or `data`, by the ending that most files
have; text is text, all else is bytes) and, with sub-folders, `label`. Order: by path.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.disk_names import on_disk
from headrace.core.errors import DatasetError, DatasetNotFoundError, FormatError
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block, Column, Keys, column_from
from headrace.data.formats.columns.packed_strings import PackedStrings
from headrace.data.formats.columns.schema import Field, Kind, Schema
from headrace.data.formats.manifest import NAME as MANIFEST
from headrace.data.formats.manifest import read_manifest, write_manifest
from headrace.data.formats.protocol import Reader, Writer, even_blocks

NAME = "folder"
TITLE = "folder of files, one a sample"
CONTENTS = {
    "image": (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"),
    "audio": (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a"),
    "text": (".txt", ".md"),
}
SIGNS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"BM": ".bmp"}
OTHER = ("path", "label")


def claims(path: str) -> bool:
    """See `Format.claims`: any folder will do, if nothing else claims it."""
    return Path(path).is_dir()


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    sound = {
        "path": field.kind == "text",
        "label": field.kind == "fixed" and field.dtype == np.int64 and not field.shape,
    }
    if field.name in OTHER:
        if sound[field.name]:
            return None
        return f"column {field.name!r} must be {'text' if field.name == 'path' else 'int64'}"

    if field.kind not in ("bytes", "text"):
        return "a file holds bytes or text"

    fits = (field.kind == "text") == (field.name == "text") and field.name in (*CONTENTS, "data")
    if fits:
        return None
    return "the content is bytes named image, audio or data, or text named text"


def open_reader(path: str, trust: bool) -> Reader:
    """See `Format.open_reader`."""
    manifest = read_manifest(path, NAME)
    names = sorted(_files(path))
    if not names:
        if not manifest:
            cure = "correct the path"
        else:
            cure = "pack the data again"

        if manifest is not None and manifest.length == 0:
            return FolderReader(path, names, manifest.schema)
        expected = "files, or sub-folders with files"
        raise DatasetNotFoundError.about("found no files", place=path, found="none", expected=expected, cure=cure)

    if manifest is not None:
        if len(names) != manifest.length:
            found = f"{len(names):,} files"
            raise FormatError.about(
                "files are missing, or too many", place=path, found=found, expected=f"{manifest.length:,}"
            )

        if manifest.extra.get("order") == "name":
            names.sort(key=lambda name: name.rpartition("/")[2])
        return FolderReader(path, names, manifest.schema)

    folders = set()
    for name in names:
        if "/" in name:
            folders.add(name.partition("/")[0])

    labels = tuple(sorted(folders))
    endings = Counter(Path(name).suffix.lower() for name in names).most_common(1)[0][0]
    content = next((column for column, known in CONTENTS.items() if endings in known), "data")
    kind: Kind
    if content == "text":
        kind = "text"
    else:
        kind = "bytes"

    fields = [Field("path", "text"), Field(content, kind)]
    if labels and all("/" in name for name in names):
        fields.append(Field("label", "fixed", np.dtype(np.int64), (), labels))
    return FolderReader(path, names, Schema(tuple(fields)))


def _files(root: str) -> list[str]:
    """Returns all files below a folder, relative to it; links to folders are not followed."""
    found = []
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(Path(root, below)) as entries:
                for entry in entries:
                    if below:
                        name = f"{below}/{entry.name}"
                    else:
                        name = entry.name

                    if entry.name.startswith(".") or entry.name == MANIFEST:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    elif entry.is_file():
                        found.append(name)
        except OSError as error:
            place = Path(root, below)
            found_text = error.strerror
            cure = "let this user read the folder, or correct the path"
            raise DatasetError.about("cannot list a folder", place=place, found=found_text, cure=cure) from error

    return found


class FolderReader:
    """Reads one file a sample."""

    format = NAME

    def __init__(self, path: str, names: Sequence[str], schema: Schema) -> None:
        self.place = path
        self.schema = schema
        self._names = PackedStrings.from_strings(names)
        if "label" in schema.names:
            label = schema["label"].labels
        else:
            label = ()

        self._labels = {name: number for number, name in enumerate(label)}

    def __len__(self) -> int:
        return len(self._names)

    def column(self, name: str) -> Column | None:
        """See `Reader.column`."""
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        schema = self.schema.only(names)
        files = [self._names[key] for key in keys.tolist()]
        columns: dict[str, Column] = {}
        for field in schema:
            if field.name == "path":
                columns["path"] = column_from(field, files)
            elif field.name == "label":
                columns["label"] = column_from(field, [self._label(file) for file in files])
            else:
                contents = [self._read(file) for file in files]
                if field.kind == "text":
                    texts: list[Any] = [content.decode("utf-8", "surrogateescape") for content in contents]
                else:
                    texts = contents
                columns[field.name] = column_from(field, texts)

        return Block(schema, columns)

    def _read(self, file: str) -> bytes:
        return Path(self.place, file).read_bytes()

    def _label(self, file: str) -> int:
        folder = file.partition("/")[0]
        if folder not in self._labels:
            expected = ", ".join(list(self._labels)[:10])
            raise FormatError.about("a file lies in no class's folder", place=self.place, found=file, expected=expected)

        return self._labels[folder]

    def blocks(self) -> Sequence[range]:
        """See `Reader.blocks`."""
        return even_blocks(len(self), 64)


def _fault_of(name: str) -> str | None:
    """Returns why a name cannot be a file's, whatever there is already."""
    if "\0" in name:
        return "with a zero byte"
    if name == MANIFEST:
        return "which is the name of the manifest"
    return None


class _FolderWriter:
    def __init__(self, path: str, schema: Schema) -> None:
        contents = []
        for field in schema:
            if field.name not in OTHER:
                contents.append(field)

        if len(contents) != 1:
            found = ", ".join(schema.names)
            expected = "one column of bytes or text, and at most path and label besides"
            cure = "choose them with columns="
            raise FormatError.about(
                "a folder of files cannot hold this", place=path, found=found, expected=expected, cure=cure
            )

        self._content = contents[0]
        self._schema = schema
        if "label" in schema.names:
            self._labels = schema["label"].labels
        else:
            self._labels = ()

        self._target = AtomicTarget(path, folder=True)
        self._length = 0

    def append(self, block: Block) -> None:
        for row in block:
            value = row[self._content.name]
            if isinstance(value, str):
                data = value.encode("utf-8", "surrogateescape")
            else:
                data = value

            name = self._name(row, data)
            target = self._target.path / on_disk(name)
            reason = _fault_of(name)
            if reason is None and target.exists():
                reason = "twice"

            if reason is not None or not target.resolve().is_relative_to(self._target.path.resolve()):
                found = f"path {name!r}, {reason or 'outside of the folder'}"
                raise FormatError.about("a file name cannot be used", place=self._target.target, found=found)

            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            self._length += 1

    def _name(self, row: dict[str, Any], data: bytes) -> str:
        if "path" in row:
            path = str(row["path"])
            if "label" in row and self._label_of(row) != path.partition("/")[0]:
                found = f"path {path!r} of label {self._label_of(row)!r}"
                expected = "files in the folder of their class"
                cure = "leave out path or label with columns="
                raise FormatError.about(
                    "a folder of files cannot hold this",
                    place=self._target.target,
                    found=found,
                    expected=expected,
                    cure=cure,
                )

            return path

        ending = next((end for sign, end in SIGNS.items() if data.startswith(sign)), ".bin")
        if self._content.kind == "text":
            suffix = ".txt"
        else:
            suffix = ending

        name = f"{self._length:09d}" + suffix
        if "label" in row:
            return f"{self._label_of(row)}/{name}"
        return name

    def _label_of(self, row: dict[str, Any]) -> str:
        label = int(row["label"])
        if not 0 <= label < len(self._labels):
            found = f"label {label}"
            expected = f"0 to {len(self._labels) - 1}, the classes that have names"
            raise FormatError.about("a label has no name", place=self._target.target, found=found, expected=expected)

        return self._labels[label]

    def seal(self) -> None:
        if "path" in self._schema.names:
            extra = {}
        else:
            extra = {"order": "name"}

        write_manifest(self._target.path, NAME, self._length, self._schema, **extra)
        self._target.commit()

    def abort(self) -> None:
        self._target.abort()


def open_writer(path: str, schema: Schema) -> Writer:
    """See `Format.open_writer`."""
    return _FolderWriter(path, schema)
