"""Data in a store whose format needs files of this machine: fetched whole, then read as if they had lain here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.data.formats.columns import Block, Column, Keys
from headrace.data.formats.protocol import Format, Names, Reader, SeveralFiles
from headrace.data.formats.shards import files_at
from headrace.storage.files import parent_of
from headrace.storage.whole import FetchedFiles


class NotByRanges(Exception):
    """These files, of a format that is read by ranges, must be fetched whole after all."""


class FetchedReader:
    """Reads files that were fetched whole. They live as long as it."""

    def __init__(self, url: str, folder: str, fetched: FetchedFiles, reader: Reader) -> None:
        self.place = url
        self.format = reader.format
        self.schema = reader.schema
        self._folder = folder
        self._fetched = fetched
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader)

    def column(self, name: str) -> Column | None:
        with naming(self._fetched.path, self._folder):
            return self._reader.column(name)

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        with naming(self._fetched.path, self._folder):
            block = self._reader.fetch(keys, names)
        # It would name the fetched copy.
        return dataclasses.replace(block, origin=None)

    def blocks(self) -> Sequence[range]:
        return self._reader.blocks()


def open_fetched(chosen: Format, url: str, trust: bool, columns: Names | None = None) -> Reader:
    """Fetches what lies at a URL, and opens it. Raises what `Format.open_reader` does, and `StorageError`."""
    folder, urls = files_at(url)
    fetched = FetchedFiles(folder, urls)
    path = fetched.path
    if url != folder and url in urls:
        path = str(Path(fetched.path, url[len(folder.rstrip("/")) + 1 :]))
    elif url != folder and not chosen.claims(path):
        # A beginning of names, under which several files lie.
        path = str(Path(fetched.path, url.rpartition("/")[2]))

    with naming(fetched.path, folder):
        return FetchedReader(url, folder, fetched, chosen.open_reader(path, trust, columns))


def open_fetched_files(
    chosen: SeveralFiles, urls: Sequence[str], place: str, trust: bool, columns: Names | None = None
) -> Reader:
    """Fetches objects, and opens them as one dataset.

    Raises what `SeveralFiles.open_files` does, and `StorageError`.
    """
    folder = os.path.commonpath([parent_of(url).partition("://")[2] for url in urls])
    folder = f"{urls[0].partition('://')[0]}://{folder}"
    # A file may be listed twice.
    fetched = FetchedFiles(folder, list(dict.fromkeys(urls)))
    begin = len(folder) + 1
    paths = [str(Path(fetched.path, url[begin:])) for url in urls]
    with naming(fetched.path, folder):
        return FetchedReader(place, folder, fetched, chosen.open_files(paths, place, trust, columns))


@contextlib.contextmanager
def naming(path: str, url: str) -> Iterator[None]:
    """Has errors of the block name the place that the user knows, instead of the fetched copy."""
    try:
        yield
    except HeadraceError as error:
        if path not in str(error):
            raise
        raise type(error)(str(error).replace(path, url.rstrip("/"))) from error
    except OSError as error:
        if not isinstance(error.filename, str) or path not in error.filename:
            raise
        raise type(error)(error.errno, error.strerror, error.filename.replace(path, url.rstrip("/"))) from error
