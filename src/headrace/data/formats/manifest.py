"""The small file beside packed data: what is in them, and the checksum of each file.

It is named `headrace.json` in a folder, `NAME.headrace.json` beside a file, and beside a folder of sub-folders: others
would take it for a class or a sample. Data can be read without it, by any library of their format; with it types and
class names come back exactly as they were, and `headrace verify` finds damage.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import FormatError, HeadraceError
from headrace.core.files.disk_names import as_text, on_disk
from headrace.core.files.regular_files import SIDE_FILE, open_regular
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns.schema import Schema
from headrace.storage import files
from headrace.storage.files import is_file, is_folder, join, read_small, size_of
from headrace.storage.locations import HTTP_SCHEMES, is_url, parse

NAME = "headrace.json"
VERSION = 1
CHUNK = 1 << 22

BESIDE = ("folder",)
"""The formats whose folders hold samples alone. Earlier versions wrote their manifests into the folder."""


@dataclass(frozen=True)
class Manifest:
    """`files` maps each path, relative to the folder, to (bytes, CRC-32)."""

    format: str
    length: int
    schema: Schema
    files: dict[str, tuple[int, int]]
    extra: dict[str, Any]
    """What the format itself wants to remember."""


def manifest_path(path: str | Path) -> Path:
    """Returns where the manifest of data on this machine lies."""
    return Path(place_of_manifest(str(path)))


def place_of_manifest(path: str) -> str:
    """Returns the path or URL at which the manifest of data lies; where it would lie in them, if there is none."""
    if not is_folder(path):
        return f"{path}.{NAME}"

    inside = join(path, NAME)
    if is_url(path) and not parse(path).key.strip("/"):
        # Nothing lies beside a whole bucket or server.
        return inside

    try:
        if not is_file(inside) and is_file(beside(path)):
            return beside(path)
    except PermissionError:
        # A store that may not be listed says so of objects that are not there, too.
        if not is_url(path):
            raise
    return inside


def beside(path: str) -> str:
    """Returns the path, URL or key of the manifest beside data."""
    return f"{path.rstrip('/')}.{NAME}"


def write_manifest(path: Path, format_name: str, length: int, schema: Schema, **extra: Any) -> Path:
    """Writes the manifest of data that are complete, with the checksum of every file. Returns where it lies.

    Raises `FormatError` if it would be longer than `read_manifest` takes: millions of files.
    """
    files = {}
    for relative in files_of(path):
        if path.is_dir():
            file = path / relative
        else:
            file = path
        files[as_text(relative)] = [*checksum(file)]

    text = manifest_text(path, format_name, length, schema, files, **extra)
    if path.is_dir() and format_name not in BESIDE:
        target = path / NAME
    else:
        target = Path(beside(str(path)))
    target.write_text(text, "utf-8")
    return target


def manifest_text(
    place: object, format_name: str, length: int, schema: Schema, files: Mapping[str, Sequence[int]], **extra: Any
) -> str:
    """Returns the text of a manifest. files: length and CRC-32 of each. Raises `FormatError` if it were too long."""
    plain = {"headrace": VERSION, "format": format_name, "length": length, "schema": schema.to_json(), "files": files}
    if extra:
        plain["extra"] = extra

    text = json.dumps(plain, indent=1) + "\n"
    # As many characters as bytes, since `json.dumps` writes ASCII.
    if len(text) > SIDE_FILE:
        found = f"{len(files):,} files, whose names and checksums take {len(text):,} bytes"
        fix = "choose a format with fewer files: arrow, memmap or webdataset"
        what = "these are too many files for a manifest"
        raise FormatError.about(what, place=place, found=found, expected=f"{SIDE_FILE:,} bytes at most", fix=fix)

    return text


def commit_with_manifest(target: AtomicTarget, format_name: str, length: int, schema: Schema, **extra: Any) -> None:
    """Writes the manifest of complete data, and puts both into place."""
    manifest = write_manifest(target.path, format_name, length, schema, **extra)
    if manifest.parent == target.path:
        target.commit()
    else:
        target.commit(manifest)


def known_schema(manifest: Manifest | None) -> Schema | None:
    """Returns the columns that a manifest tells of; None without one: they are then guessed."""
    if manifest is None:
        return None
    return manifest.schema


def only_known(known: Schema | None, columns: Collection[str] | None) -> Schema | None:
    """Returns the wanted ones of columns that are known; all, if none are named or one of them is not there."""
    if known is None or columns is None or not set(columns) <= set(known.names):
        return known
    return known.only(columns)


def read_manifest(path: str, format_name: str | None = None) -> Manifest | None:
    """Returns the manifest of data; None without one, or for one of another format. Raises `FormatError` if damaged."""
    place = place_of_manifest(path)
    try:
        text = read_small(place)
        if is_page(place, text):
            return None
        plain = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        if isinstance(error, HeadraceError):
            raise
        raise damaged(place, f"{type(error).__name__}: {error}") from error

    try:
        if plain["headrace"] != VERSION:
            raise damaged(place, f"version {plain['headrace']!r}")
        if format_name is not None and plain["format"] != format_name:
            return None
        schema = Schema.from_json(plain["schema"], place)
        files = {}
        for name, (size, crc) in plain["files"].items():
            files[on_disk(str(name))] = (int(size), int(crc))

        # `headrace verify` reads what a manifest lists: a stranger's could list files that are none of the data.
        if int(plain["length"]) < 0 or any(map(leads_outside, files)):
            raise damaged(place, "a negative length, or files outside of the folder")
        return Manifest(str(plain["format"]), int(plain["length"]), schema, files, dict(plain.get("extra", {})))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise damaged(place, f"{type(error).__name__}: {error}") from error


def is_page(place: str, text: bytes) -> bool:
    """Tells whether a web server has sent a page about what is not there, and no manifest."""
    if not is_url(place) or parse(place).scheme not in HTTP_SCHEMES:
        return False
    # A manifest that was cut off begins as one, and is damaged.
    begins_as_one = text.lstrip().startswith(b"{") and b'"headrace"' in text
    return not begins_as_one


def leads_outside(name: str) -> bool:
    """Tells whether a path that data name leads out of their folder."""
    return Path(name).is_absolute() or ".." in Path(name).parts


def damaged(place: object, found: str) -> FormatError:
    """Returns the error for a manifest that cannot be used."""
    expected = f"a manifest of version {VERSION}, as headrace writes it"
    fix = "restore it, or delete it: the data can be read without, only types and class names are then guessed"
    return FormatError.about("a manifest is damaged", place=place, found=found, expected=expected, fix=fix)


def manifest_of(path: str, format_name: str) -> Manifest | None:
    """Returns the manifest of data in a format, None if there is none. Raises `FormatError` if a file is too short."""
    manifest = read_manifest(path, format_name)
    if manifest is not None:
        for relative in manifest.files:
            if is_folder(path):
                file = join(path, relative)
            else:
                file = path

            check_size(manifest, relative, file)
    return manifest


def check_size(manifest: Manifest, relative: str, path: str) -> None:
    """Raises `FormatError` if a file is not as long as the manifest says: a cheap check when it is opened."""
    expected = manifest.files.get(relative)
    if expected is not None and not is_file(path):
        fix = "restore the file, or pack the data again"
        wanted = f"a file of {expected[0]:,} bytes, says the manifest"
        raise FormatError.about("a file is missing", place=path, found="nothing", expected=wanted, fix=fix)

    if expected is None:
        return

    size = size_of(path)
    if size == expected[0]:
        return

    raise FormatError.about(
        "a file was cut off, or changed",
        place=path,
        found=f"{size:,} bytes",
        expected=f"{expected[0]:,} bytes, says the manifest",
        fix="restore the file, or pack the data again",
    )


def files_of(path: Path) -> Iterable[str]:
    """Returns the files of packed data, in order of their names; relative to the folder, or the one file's name."""
    if not path.is_dir():
        return [path.name]
    names = []
    for file in path.rglob("*"):
        if file.is_file() and file.name != NAME:
            names.append(str(file.relative_to(path)))

    return sorted(names)


def checksum(path: Path) -> tuple[int, int]:
    """Returns the length in bytes and the CRC-32 of a file."""
    size = crc = 0
    with open_regular(path) as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)

    return size, crc


def plain_files(folder: str) -> list[str]:
    """Returns the names of the files in a folder, sorted, without hidden ones and manifests; empty if unreadable."""
    names = files.plain_files(folder)
    if NAME in names:
        names.remove(NAME)
    return names


def files_ending_in(folder: str, suffixes: str | tuple[str, ...]) -> list[str]:
    """Returns the names among `plain_files` that end in one of the suffixes."""
    names = []
    for name in plain_files(folder):
        if name.endswith(suffixes):
            names.append(name)

    return names
