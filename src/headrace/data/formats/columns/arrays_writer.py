"""Columns that are written as named arrays: spooled to the disk as they come, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Array, Block
from headrace.data.formats.columns.arrays import array_names, arrays_of
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.file_names import file_name
from headrace.data.formats.manifest import commit_with_manifest
from headrace.data.formats.npy_arrays import map_npy


class NpyFile:
    """An `.npy` file that grows: the header leaves room for the final length."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._dtype = dtype
        self._shape = shape
        self._length = 0
        self._write_header()

    def append(self, values: Array) -> None:
        """Adds entries at the end."""
        np.ascontiguousarray(values, self._dtype).tofile(self._file)
        self._length += len(values)

    def close(self) -> None:
        """Writes the final length."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def _write_header(self) -> None:
        description = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": description, "fortran_order": False, "shape": (self._length, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, header)


class Spool:
    """Columns that grow on the disk, as a folder of `.npy` files."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._folder = folder
        self._schema = schema
        self.length = 0
        self._files: dict[str, NpyFile] = {}
        # Arrays of offsets alone are in here: the bytes or entries that the file before them has so far.
        self._totals: dict[str, int] = {}
        for field in schema:
            main, *offsets = array_names(field)
            if field.kind in ("fixed", "ragged"):
                shape = field.shape
            else:
                shape = ()

            self._files[main] = NpyFile(self.path(main), field.dtype, shape)
            for name in offsets:
                self._files[name] = NpyFile(self.path(name), np.dtype(np.int64), ())
                self._files[name].append(np.zeros(1, np.int64))
                self._totals[name] = 0

    def path(self, name: str) -> Path:
        """Returns the file of an array."""
        return self._folder / file_name(name)

    def append(self, block: Block) -> None:
        """Adds samples at the end."""
        for field in self._schema:
            for name, array in arrays_of(field, block.columns[field.name]).items():
                # The offsets of a block begin at 0 again; those of the file go on, with the first left out.
                if name in self._totals:
                    self._files[name].append(array[1:] + self._totals[name])
                    self._totals[name] += int(array[-1])
                else:
                    self._files[name].append(array)

        self.length += len(block)

    def finish(self) -> list[str]:
        """Closes all files. Returns the names of the arrays."""
        for file in self._files.values():
            file.close()
        return list(self._files)

    def load(self) -> dict[str, Array]:
        """Returns the arrays, mapped into memory."""
        arrays = {}
        for name in self._files:
            arrays[name] = map_npy(self.path(name))

        return arrays


Finish = Callable[[dict[str, Array], Path], None]


class ArraysWriter:
    """A writer that spools columns to the disk and has them made into the format in the end: bounded memory."""

    def __init__(self, format_name: str, target: str, schema: Schema, finish: Finish, *, folder: bool = False) -> None:
        """`finish` makes the format's files from all arrays, at a path."""
        self._name = format_name
        self._schema = schema
        self._finish = finish
        self._spool_target = AtomicTarget(f"{target}.spool", folder=True)
        # The spool's folder is on the disk by now. If the target cannot be written, nobody will call `abort`.
        try:
            self._target = AtomicTarget(target, folder=folder)
        except BaseException:
            self._spool_target.abort()
            raise

        self._spool = Spool(self._spool_target.path, schema)

    def append(self, block: Block) -> None:
        self._spool.append(block)

    def seal(self) -> None:
        self._spool.finish()
        self._finish(self._spool.load(), self._target.path)
        commit_with_manifest(self._target, self._name, self._spool.length, self._schema)
        self._spool_target.abort()

    def abort(self) -> None:
        self._spool.finish()
        self._spool_target.abort()
        self._target.abort()
