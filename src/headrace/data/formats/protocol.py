"""The seam between formats and everything else: a reader and a writer.

Life of a reader: `registry.open_reader` makes one in the process of the user, where it finds out length and schema. It
opens what it needs lazily, on the first `fetch` or `column`, and once per process: a reader that arrives in another
process (by fork or pickle) has no handle there yet. `Handle` does that. It may be used by several threads.

Life of a writer: the command or function that makes it calls `append` with block after block, in order, in one thread,
then `seal` once; or `abort`, after which nothing is left. Until `seal` returns, nothing is to be seen at the target;
then all of it is there (see `atomic_target.py`). What was there before stays until that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from headrace.data.formats.columns import Array, Block, Column, Keys
from headrace.data.formats.columns.schema import Field, Schema
from headrace.storage.fetching.ranges import ByteRange

T = TypeVar("T")

Names = Collection[str]
"""Of columns."""


class Reader(Protocol):
    """Reads one stored dataset: sample number 0 .. length-1 of each column."""

    format: str
    place: str
    """What a user would call it: a path."""
    schema: Schema

    def __len__(self) -> int: ...

    def column(self, name: str) -> Column | None:
        """Returns a whole column without a copy, if it lies in memory or can be mapped into it; otherwise None."""

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """Returns the samples of `keys` (int64 [k], each 0 .. length-1, in any order, also repeated), in that order.

        Raises `FormatError` if the data are damaged.
        """

    def blocks(self) -> Sequence[range]:
        """Returns the runs of samples that are quickest to read one after the other, in order; together all."""


@runtime_checkable
class NamesFiles(Protocol):
    """A reader that knows which file holds a sample."""

    def path_of_sample(self, key: int) -> str:
        """Returns the file of a sample, and where it lies in that. key: 0 .. length-1."""


@runtime_checkable
class Stamped(Protocol):
    """Data that tell by themselves whether they have changed, such as those that lie in no files."""

    def stamp(self) -> str:
        """Returns a text that changes when the data do, as far as can be told."""


def stamped(reader: Reader) -> Stamped | str:
    """Returns what tells whether the data of a reader have changed: the reader itself, or their place."""
    if isinstance(reader, Stamped):
        return reader
    return reader.place


@runtime_checkable
class WindowReader(Protocol):
    """A reader that reads windows of columns from a store: runs of neighbouring samples."""

    def fetch_windows(self, starts: Keys, length: int, names: Sequence[str]) -> dict[str, Array]:
        """Returns [windows, length, *shape] of columns of samples of one size. starts: the first sample of each.

        Raises `FormatError` if the data are damaged, and `StorageError`.
        """

    def window_ranges(self, starts: Keys, length: int, names: Sequence[str]) -> list[ByteRange]:
        """Returns the ranges that `fetch_windows` of the same will read."""


class Writer(Protocol):
    """Writes one dataset; `headrace.open_writer` makes it.

    Examples:
        >>> from headrace.types import Block, Field, Schema
        >>> schema = Schema((Field("x", dtype=np.dtype("float32")),))
        >>> writer = headrace.open_writer("x.arrow", schema, "arrow")
        >>> writer.append(Block(schema, {"x": np.ones(2, np.float32)}))
        >>> writer.abort()
    """

    def append(self, block: Block) -> None:
        """Adds samples at the end.

        Args:
            block: samples with the schema of the writer.

        Raises:
            FormatError: the format cannot hold them.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x", dtype=np.dtype("int64")),))
            >>> writer = headrace.open_writer("x.arrow", schema, "arrow")
            >>> writer.append(headrace.types.Block(schema, {"x": np.array([3, 4])}))
            >>> writer.seal()
        """

    def seal(self) -> None:
        """Makes all of it durable and visible at the target.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x", dtype=np.dtype("int64")),))
            >>> writer = headrace.open_writer("x.arrow", schema, "arrow")
            >>> writer.seal()
        """

    def abort(self) -> None:
        """Removes what was written.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x", dtype=np.dtype("int64")),))
            >>> writer = headrace.open_writer("x.arrow", schema, "arrow")
            >>> writer.abort()
        """


class Format(Protocol):
    """What the registry knows of a format: each has these, a module at its top level or an object."""

    NAME: str
    TITLE: str
    """In a few words, for people."""

    def claims(self, path: str) -> bool:
        """Tells whether this is data of this format, from names and first bytes."""

    def open_reader(self, path: str, trust: bool, columns: Names | None = None) -> Reader:
        """Opens data for reading. Raises `FormatError`, `DatasetNotFoundError`, `OSError`.

        columns: those that are wanted, if not all: what does not fit may lie beside them. The reader may have others.
        """

    def open_writer(self, path: str, schema: Schema) -> Writer:
        """Begins to write. Raises `FormatError` if the format cannot hold this schema."""

    def refusal(self, field: Field) -> str | None:
        """Returns why the format cannot hold a field; None if it can."""


@runtime_checkable
class SeveralFiles(Protocol):
    """A format whose datasets may lie in several files, as they are listed by a user."""

    def open_files(self, files: Sequence[str], place: str, trust: bool, columns: Names | None = None) -> Reader:
        """Opens files, which are all there, as one dataset, in their order. Raises as `Format.open_reader` does.

        files: paths, or URLs of one store; at least one. place: what a user would call them. columns: as there.
        """


def even_blocks(length: int, size: int) -> list[range]:
    """Returns runs of `size` samples."""
    return [range(start, min(start + size, length)) for start in range(0, length, size)]
