"""The writer of all formats whose files grow sample by sample: a file, or a folder with one shard in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.manifest import commit_with_manifest
from headrace.data.formats.shards import shard_name


class GrowingFile(Protocol):
    """A file that grows."""

    length: int

    def append(self, block: Block) -> None:
        """Adds samples at the end."""

    def close(self) -> None:
        """Completes the file."""


class GrowingFileWriter:
    """A `Writer` around one growing file. A path that ends in none of the suffixes becomes a folder of one shard."""

    def __init__(
        self,
        name: str,
        path: str,
        schema: Schema,
        suffixes: tuple[str, ...],
        begin: Callable[[Path, Schema], GrowingFile],
    ) -> None:
        self._name = name
        self._schema = schema
        self._target = AtomicTarget(path, folder=not path.endswith(suffixes))
        if self._target.path.is_dir():
            inner = self._target.path / shard_name(0, suffixes[0])
        else:
            inner = self._target.path

        self._file = begin(inner, schema)

    def append(self, block: Block) -> None:
        self._file.append(block)

    def seal(self) -> None:
        self._file.close()
        commit_with_manifest(self._target, self._name, self._file.length, self._schema)

    def abort(self) -> None:
        self._file.close()
        self._target.abort()
