"""A folder of files, one a sample: images, audio, text, or anything. Sub-folders, where there are any, are the labels.

Columns: `path` (relative to the folder), the content (`image`, `audio`, `text` or `data`, by the ending that most files
have; text is text, all else is bytes) and, with sub-folders, `label`. Order: by path.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import DatasetError, DatasetNotFoundError, FormatError
from headrace.core.files.disk_names import on_disk
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block, Column, Keys, SampleOrigin, column_from
from headrace.data.formats.columns.schema import Field, Kind, Schema
from headrace.data.formats.manifest import NAME as MANIFEST
from headrace.data.formats.manifest import commit_with_manifest, place_of_manifest, read_manifest
from headrace.data.formats.protocol import Names, Reader, Writer, even_blocks
from headrace.data.formats.sample_files import LocalSampleFiles, RemoteSampleFiles, SampleFiles
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.files import entries_below, is_folder, join, objects_below
from headrace.storage.locations import is_url

NAME = "folder"
TITLE = "folder of files, one a sample"
CONTENTS = {
    "image": (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"),
    "audio": (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a"),
    "text": (".txt", ".md"),
}
SIGNS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"BM": ".bmp"}
OTHER = ("path", "label")

LITTER = frozenset(("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir"))
"""Names of what file managers leave behind, in small letters; other litter begins with a dot."""

NOTES = (
    ".txt", ".md", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".html", ".pdf", ".log", ".rtf", ".csv", ".tsv",
    ".parquet", ".npy", ".npz", ".py", ".bak", ".tmp",
)  # fmt: skip
"""Endings of files that lie among images or sounds, and tell of them."""

SPLITS = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing"))
"""Names of folders that are parts of a dataset more often than classes."""

NAMED = 3
"""Links that are named in the log, of those that are left out."""

LOGGER = logging.getLogger("headrace")


def claims(path: str) -> bool:
    """See `Format.claims`: any folder will do, if nothing else claims it."""
    return is_folder(path)


def refusal(field: Field) -> str | None:
    if field.name == "path":
        if field.kind == "text":
            return None
        return "column 'path' must be text"

    if field.name == "label":
        if field.kind == "fixed" and field.dtype == np.int64 and not field.shape:
            return None
        return "column 'label' must be int64"

    if field.kind not in ("bytes", "text"):
        return "a file holds bytes or text"

    fits = (field.kind == "text") == (field.name == "text") and field.name in (*CONTENTS, "data")
    if fits:
        return None
    return "the content is bytes named image, audio or data, or text named text"


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest = read_manifest(path, NAME)
    objects = {}
    if is_url(path):
        for name, info in objects_below(path):
            if not _is_hidden(name):
                objects[name] = info
        names = sorted(objects)
    else:
        names = sorted(_files(path))

    if not names:
        if manifest is None:
            fix = "correct the path"
        elif manifest.length == 0:
            return FolderReader(path, LocalSampleFiles(path, names), manifest.schema)
        else:
            fix = "pack the data again"

        expected = "files, or sub-folders with files"
        raise DatasetNotFoundError.about("found no files", place=path, found="none", expected=expected, fix=fix)

    if manifest is not None:
        if len(names) != manifest.length:
            found = f"{len(names):,} files"
            raise FormatError.about(
                "files are missing, or too many",
                place=path,
                found=found,
                expected=f"{manifest.length:,}",
                fix=f"copy or pack the data again; if these are other data, remove {place_of_manifest(path)}",
            )

        # A writer without a `path` column numbers its files through all classes: sorted by path, samples would come
        # class by class instead of in the order in which they were packed.
        if manifest.extra.get("order") == "name":
            names.sort(key=lambda name: name.rpartition("/")[2])
        schema = manifest.schema
    else:
        names = _without_notes(path, names)
        schema = _guessed(path, names)

    if is_url(path):
        return FolderReader(path, RemoteSampleFiles(path, [(name, objects[name]) for name in names]), schema)
    return FolderReader(path, LocalSampleFiles(path, names), schema)


def is_litter(name: str) -> bool:
    """Tells whether a file or folder is what a file manager has left behind."""
    return name.lower() in LITTER


def _is_hidden(name: str) -> bool:
    """Tells whether an object is no sample: the manifest, litter, or what a name with a dot in front hides."""
    return name == MANIFEST or any(part.startswith(".") or is_litter(part) for part in name.split("/"))


def _without_notes(path: str, names: Sequence[str]) -> list[str]:
    """Returns the files of a folder without what tells of the samples and is none itself, such as a README."""
    endings = Counter(Path(name).suffix.lower() for name in names)
    inside = {Path(name).suffix.lower() for name in names if "/" in name}
    content = _content_of(endings.most_common(1)[0][0])
    notes = []
    for name in names:
        ending = Path(name).suffix.lower()
        if content in ("image", "audio"):
            is_note = ending in NOTES or name.endswith("~")
        else:
            is_note = bool(inside) and "/" not in name and ending not in inside
        if is_note:
            notes.append(name)

    left_out = set(notes)
    kept = [name for name in names if name not in left_out]
    if notes:
        shown = ", ".join(notes[:5])
        LOGGER.warning("%s: %d files that are no samples are left out: %s", path, len(notes), shown)

    beside = [name for name in kept if "/" not in name]
    if 0 < len(beside) < len(kept):
        told = "%s: files such as %s lie beside the sub-folders, so that these are no classes: there is no column label"
        LOGGER.warning(told, path, beside[0])
    return kept


def _guessed(path: str, names: Sequence[str]) -> Schema:
    """Returns the columns of a folder that nothing describes, from the names of its files."""
    labels = set()
    endings: Counter[str] = Counter()
    in_folders = 0
    for name in names:
        endings[Path(name).suffix.lower()] += 1
        folder, slash, _ = name.partition("/")
        if slash:
            labels.add(folder)
            in_folders += 1

    content = _content_of(endings.most_common(1)[0][0])
    kind: Kind
    if content == "text":
        kind = "text"
    else:
        kind = "bytes"

    fields = [Field("path", "text"), Field(content, kind)]
    # A file beside the sub-folders belongs to no class, so that the sub-folders are none.
    if in_folders == len(names):
        if SPLITS.issuperset(label.lower() for label in labels):
            told = "%s: the classes are %s, which look like parts of a dataset. To have the classes in one: open(%s)"
            LOGGER.warning(told, path, ", ".join(sorted(labels)), join(path, min(labels)))
        fields.append(Field("label", "fixed", np.dtype(np.int64), (), tuple(sorted(labels))))

    return Schema(tuple(fields))


def _content_of(ending: str) -> str:
    """Returns the column that holds files of an ending."""
    for column, endings in CONTENTS.items():
        if ending in endings:
            return column

    return "data"


def _ending_of(data: bytes) -> str:
    """Returns the ending for a file of these bytes, by their first ones."""
    for sign, ending in SIGNS.items():
        if data.startswith(sign):
            return ending

    return ".bin"


def _files(root: str) -> list[str]:
    """Returns all files below a folder, relative to it."""
    found = []
    left_out = []

    def cannot_list(place: Path, error: OSError) -> None:
        if error.errno == errno.ELOOP:
            left_out.append(place.relative_to(root).as_posix())
            return
        fix = "let this user read the folder, or correct the path"
        raise DatasetError.about("cannot list a folder", place=place, found=error.strerror, fix=fix) from error

    for name, entry in entries_below(root, _is_hidden, cannot_list):
        if entry.is_file():
            found.append(name)
        elif entry.is_symlink() and not Path(entry.path).exists():
            left_out.append(name)

    if left_out:
        told = "%s: %d links are left out, which lead nowhere, or to a folder that is read already or lies above: %s"
        LOGGER.warning(told, root, len(left_out), ", ".join(left_out[:NAMED]))
    return found


class FolderReader:
    """Reads one file a sample."""

    format = NAME

    def __init__(self, path: str, files: SampleFiles, schema: Schema) -> None:
        self.place = path
        self.schema = schema
        self._files = files
        if "label" in schema.names:
            label = schema["label"].labels
        else:
            label = ()

        self._labels = {name: number for number, name in enumerate(label)}

    def __len__(self) -> int:
        return len(self._files.names)

    def column(self, name: str) -> Column | None:
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        schema = self.schema.only(names)
        files = [self._files.names[key] for key in keys.tolist()]
        columns: dict[str, Column] = {}
        for field in schema:
            values: list[Any]
            if field.name == "path":
                values = files
            elif field.name == "label":
                values = list(map(self._label, files))
            elif field.kind == "text":
                values = []
                for data in self._files.read(keys.tolist()):
                    values.append(str(data, "utf-8", "surrogateescape"))
            else:
                values = list(self._files.read(keys.tolist()))

            columns[field.name] = column_from(field, values)

        return Block(schema, columns, SampleOrigin(self._place_of, keys))

    def path_of_sample(self, key: int) -> str:
        return self._files.place(key)

    def _place_of(self, key: Any, column: str) -> str:
        return self._files.place(int(key))

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        if set(names) <= set(OTHER):
            return []
        return self._files.ranges(keys.tolist())

    def _label(self, file: str) -> int:
        folder = file.partition("/")[0]
        if folder not in self._labels:
            expected = ", ".join(list(self._labels)[:10])
            raise FormatError.about(
                "a file lies in no class's folder",
                place=self.place,
                found=file,
                expected=expected,
                fix="move it into the folder of its class, or remove it, and open the data again",
            )

        return self._labels[folder]

    def blocks(self) -> Sequence[range]:
        return even_blocks(len(self), 64)


class _FolderWriter:
    def __init__(self, path: str, schema: Schema) -> None:
        contents = []
        for field in schema:
            if field.name not in OTHER:
                contents.append(field)

        if len(contents) != 1:
            found = ", ".join(schema.names)
            expected = "one column of bytes or text, and at most path and label besides"
            fix = "choose them with columns="
            raise FormatError.about(
                "a folder of files cannot hold this", place=path, found=found, expected=expected, fix=fix
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
            fault = self._fault_of(name, target)
            if fault is not None:
                found = f"path {name!r}, {fault}"
                raise FormatError.about("a file name cannot be used", place=self._target.target, found=found)

            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            self._length += 1

    def _fault_of(self, name: str, target: Path) -> str | None:
        """Returns why a sample cannot be written under its name, as the path `target`; None if it can."""
        # A zero byte goes first: no call of the system takes such a path.
        if "\0" in name:
            return "with a zero byte"
        if name == MANIFEST:
            return "which is the name of the manifest"
        if target.exists():
            return "twice"

        # Names come from the data: `../../.bashrc`, or a path from the root, would be written wherever it leads.
        if not target.resolve().is_relative_to(self._target.path.resolve()):
            return "outside of the folder"
        return None

    def _name(self, row: dict[str, Any], data: bytes) -> str:
        if "path" in row:
            path = str(row["path"])
            if "label" in row and self._label_of(row) != path.partition("/")[0]:
                found = f"path {path!r} of label {self._label_of(row)!r}"
                expected = "files in the folder of their class"
                fix = "leave out path or label with columns="
                raise FormatError.about(
                    "a folder of files cannot hold this",
                    place=self._target.target,
                    found=found,
                    expected=expected,
                    fix=fix,
                )

            return path

        if self._content.kind == "text":
            suffix = ".txt"
        else:
            suffix = _ending_of(data)

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

        commit_with_manifest(self._target, NAME, self._length, self._schema, **extra)

    def abort(self) -> None:
        self._target.abort()


def open_writer(path: str, schema: Schema) -> Writer:
    return _FolderWriter(path, schema)
