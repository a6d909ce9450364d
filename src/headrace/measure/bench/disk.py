"""The files that stored data lie in, on this machine or in a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.data.formats import idx
from headrace.data.formats.manifest import manifest_path, place_of_manifest
from headrace.data.formats.shards import files_at as objects_at
from headrace.data.formats.shards import is_pattern, shards_of
from headrace.storage.files import info_of, is_file
from headrace.storage.listing import lookup
from headrace.storage.locations import is_url, local_path, parse
from headrace.storage.stores.store_options import options_for


@dataclass(frozen=True)
class Footprint:
    """How much stored data are."""

    bytes: int
    files: int
    """The manifest among them; 0 if the files cannot be told."""
    has_manifest: bool


def footprint_of(uri: str, options: Mapping[str, object] | None = None) -> Footprint:
    """Returns the bytes and files of data at a path or a URL. At a URL, the store lists them, and nothing is read.

    options: of the store that a URL names. Raises `DatasetNotFoundError` if a file of a range is missing, and
    `StorageError`.
    """
    place = local_path(uri)
    if not is_url(place):
        files = files_at(place)
        has_manifest = manifest_path(Path(place).expanduser()).is_file()
        return Footprint(bytes_of_files(files), len(files), has_manifest)

    with lookup(options_for(place, options, "headrace bench")):
        url = parse(place).url
        objects = objects_at(url)[1]
        manifest = place_of_manifest(url)
        has_manifest = is_file(manifest)
        # That of a folder of samples lies beside it.
        if has_manifest and manifest not in objects:
            objects.append(manifest)
        return Footprint(sum(info_of(file).size for file in objects), len(objects), has_manifest)


def files_at(place: str) -> list[Path]:
    """Returns the files of the data that a path, a pattern or a stem stands for, the manifest among them.

    Empty if they cannot be told. Raises `DatasetNotFoundError` if a file of a range is missing.
    """
    path = Path(place).expanduser()
    place = str(path)
    if path.is_dir():
        files = files_below(path)
        manifest = manifest_path(path)
        if files and manifest.is_file() and manifest not in files:
            files.append(manifest)
        return files
    if is_pattern(place):
        return list(map(Path, shards_of(place, ())))

    if path.is_file():
        files = [path]
    elif path.parent.is_dir():
        files = list(map(Path, idx.files_of(place).values()))
    else:
        files = []

    manifest = manifest_path(path)
    if files and manifest.is_file():
        return [*files, manifest]
    return files


def files_below(folder: Path) -> list[Path]:
    """Returns all files of a folder and of those in it, sorted."""
    return sorted(filter(Path.is_file, folder.rglob("*")))


def bytes_of_files(files: list[Path]) -> int:
    """Returns how many bytes files have together."""
    return sum(path.stat().st_size for path in files)
