"""Stored data as a map-style dataset that makes whole batches."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from headrace.core.batch_memory import BatchMemory, OwnMemory
from headrace.core.errors import FormatError, UsageError, wrong_argument
from headrace.core.process.per_process import Handle
from headrace.core.text.secrets import hide_secrets
from headrace.data import gather
from headrace.data.fluent import Fluent
from headrace.data.formats.columns import Block, Column, Keys, value_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.protocol import NamesFiles, Reader, WindowReader, stamped
from headrace.data.formats.registry import is_mapped
from headrace.data.formats.shards import FileList, beginning_of_files, stamp_of
from headrace.data.gather import INT64, Gather, RaggedAs, in_range, wanted_types, whole_numbers
from headrace.data.images import decode_image, holds_images, stacked
from headrace.data.mapped_files import MappedFiles
from headrace.data.stacking import Stacking, gather_stacked
from headrace.data.stream import StoredStream
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.listing import lookup
from headrace.storage.locations import is_url


class StoredDataset(Fluent, Dataset[dict[str, Any]]):
    """Samples are dicts of their columns; made by `headrace.open`.

    A sample's value is a NumPy array or number (a copy), bytes or a string. A batch that headrace.DataLoader collates
    by default is made column by column, without a Python loop over samples: tensors, `Padded`, `Blobs` (byte strings in
    one memory) and lists of strings. Holds no open file until it is used, and none is sent to other processes.

    Attributes:
        schema: the columns that samples have.

    Args:
        reader: reads the stored form.
        schema: of the columns that samples have.
        decode: as for `headrace.open`.
        ragged: as for `headrace.open`.
        listed: the files, where a user has listed them.
        options: of the store in which the data lie.
        stacking: how `schema` comes of stored columns; None: they are its.

    Examples:
        >>> np.save("x.npy", np.arange(6, dtype=np.float32))
        >>> data = headrace.open("x.npy")
        >>> data.schema.names, len(data), float(data[2]["data"])
        (('data',), 6, 2.0)
    """

    _mapped: MappedFiles | None = None
    _look_due = 0.0

    def __init__(
        self,
        reader: Reader,
        schema: Schema,
        *,
        decode: bool,
        ragged: RaggedAs,
        listed: FileList | None = None,
        options: Mapping[str, object] | None = None,
        stacking: Stacking | None = None,
    ) -> None:
        self._reader = reader
        self._stacking = stacking
        self._listed = listed
        self._decode = decode
        self._ragged = ragged
        self._types = {field.name: field.dtype for field in schema}
        self._window: tuple[int, int] | None = None
        self.schema = schema
        self._options = options
        self._checks_keys = False
        self._plan: Handle[list[tuple[str, Gather]] | None] = Handle()

    def __getstate__(self) -> dict[str, Any]:
        # The clock of another machine is another one, and so may its files be.
        return {**vars(self), "_mapped": None, "_look_due": 0.0}

    @property
    def format(self) -> str:
        """The name of the stored form."""
        return self._reader.format

    @property
    def reader(self) -> Reader:
        """What reads the stored form."""
        return self._reader

    @property
    def ragged(self) -> RaggedAs:
        """How a batch holds samples of different lengths."""
        return self._ragged

    @property
    def place(self) -> str:
        """Where the data lie, as it was given."""
        return self._reader.place

    @property
    def draws(self) -> bool:
        """Whether samples may draw random numbers: only what a subclass does with them may."""
        return type(self).__getitem__ is not StoredDataset.__getitem__

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The columns that are read: those that samples have, or of which these are stacked."""
        if self._stacking is None:
            return self.schema.names
        return self._stacking.stored.names

    @property
    def lies_in_memory(self) -> bool:
        """Whether batches are gathered from memory, or from files that are mapped into it; opens the data."""
        return self._plan.get(self._make_plan) is not None

    @property
    def lies_elsewhere(self) -> bool:
        """Whether samples are read, range by range, from an object store or a server."""
        return is_url(self.place) and hasattr(self._reader, "byte_ranges")

    def byte_ranges(self, keys: Keys) -> list[ByteRange]:
        """Returns which byte ranges samples are, where they lie elsewhere. keys: int64 [n], 0 .. length-1."""
        if self._window is not None:
            if not isinstance(self._reader, WindowReader):
                return []
            length, stride = self._window
            return self._reader.window_ranges(in_range(keys, len(self)) * stride, length, self.schema.names)

        found: list[ByteRange] = self._reader.byte_ranges(keys, self.stored_names)  # type: ignore[attr-defined]
        return found

    def __len__(self) -> int:
        if self._window is None:
            return len(self._reader)
        length, stride = self._window
        return max((len(self._reader) - length) // stride + 1, 0)

    def path_of_sample(self, key: Any) -> str | None:
        """Returns the file of a sample, and where it lies in that; None if the stored form does not tell."""
        if self._window is not None or not isinstance(self._reader, NamesFiles):
            return None
        if not isinstance(key, (int, np.integer)) or not -len(self) <= key < len(self):
            return None
        return self._reader.path_of_sample(int(key) % len(self))

    def astype(self, dtype: Any = None, **columns: Any) -> StoredDataset:
        """Returns the same data with numbers converted while they are gathered.

        Args:
            dtype: for all columns of numbers, as torch's or NumPy's. Values are converted as they are, not scaled.
            columns: for single ones, as in `astype(image=torch.float32)`.

        Returns:
            A new dataset; this one stays as it is.

        Raises:
            UsageError: no such column, or no type of numbers.

        Examples:
            >>> np.save("x.npy", np.arange(6, dtype=np.uint8))
            >>> headrace.open("x.npy").astype(torch.float32)[2]["data"].dtype
            dtype('float32')
        """
        changed = self._copy()
        changed._types |= wanted_types(self.schema, dtype, columns)
        return changed

    def windows(self, length: int, stride: int | None = None) -> StoredDataset:
        """Returns the data as windows: sample k is entries `k * stride` to `k * stride + length - 1` of each column.

        For streams of tokens: `open("tokens.npy").windows(2049, 2048)`. Needs columns of numbers of one size that lie
        in memory or can be mapped (`.npy`, memmap, Arrow in one piece); in a store, any that is read by ranges.

        Args:
            length: entries of a window.
            stride: entries from one window to the next; `length` if not given.

        Returns:
            A new dataset; this one stays as it is.

        Raises:
            UsageError: windows cannot be cut from the data.

        Examples:
            >>> np.save("tokens.npy", np.arange(9))
            >>> headrace.open("tokens.npy").windows(5, 4)[1]
            {'data': array([4, 5, 6, 7, 8])}
        """
        if stride is None:
            stride = length
        for name, number in (("length", length), ("stride", stride)):
            if number < 1:
                raise wrong_argument(name, number, "a whole number above 0", place="windows")

        if self._stacking is not None:
            fix = "open the data without stack=, or stack the columns in a step of transform()"
            found = f"stack= of {', '.join(self._stacking.names)}"
            raise UsageError.about("windows cannot be cut from this", place="windows", found=found, fix=fix)

        for field in self.schema:
            by_ranges = isinstance(self._reader, WindowReader)
            if field.kind != "fixed" or not (by_ranges or self._reader.column(field.name) is not None):
                fix = "leave the column out with columns=, or pack the data as memmap"
                what = "windows cannot be cut from this"
                raise UsageError.about(what, place=f"column {field.name!r}", found=str(field), fix=fix)

        changed = self._copy()
        changed._window = length, stride
        return changed

    def stream(self, *, shuffle: int = 0) -> StoredStream:
        """Returns an iterable dataset of the same samples, read one after the other, split over workers and ranks.

        Args:
            shuffle: how many neighbouring samples are mixed, at least; blocks come in random order, too. 0: in order.

        Returns:
            A stream that resumes in mid-epoch.

        Raises:
            UsageError: `shuffle` is no whole number from 0 up.

        Examples:
            >>> np.save("x.npy", np.arange(4))
            >>> [int(sample["data"]) for sample in headrace.open("x.npy").stream()]
            [0, 1, 2, 3]
        """
        return StoredStream(self, shuffle)

    def encoded(self, part: str | int | None) -> StoredDataset:
        """See `Fluent.encoded`: for the name of the only column of images."""
        images = [field.name for field in self.schema if holds_images(field)]
        if not self._decode or images != [part]:
            return self
        changed = self._copy()
        changed._decode = False
        return changed

    def _copy(self) -> StoredDataset:
        changed = copy.copy(self)
        changed._types = dict(self._types)
        # A cached property: it follows from what will be changed.
        vars(changed).pop("block_schema", None)
        changed._checks_keys = False
        changed._plan = Handle()
        return changed

    # -- samples -------------------------------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns sample number `index`, counted from the end if negative. Raises `IndexError`."""
        return self.__getitems__([index])[0]

    def __getitems__(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        """Returns several samples, read together."""
        checked = self.checked(keys)
        if self._window is not None:
            parts = self.fetch_batch(checked, OwnMemory())
            samples = []
            for row in range(len(checked)):
                samples.append({name: value[row].numpy() for name, value in parts.items()})

            return samples

        block = self._read(checked)
        return [self.sample(block, row) for row in range(len(checked))]

    def block(self, keys: Keys) -> Block | None:
        """Returns samples as columns of their types, in memory of their own; None where they are decoded one by one.

        keys: int64 [n], 0 .. length-1.
        """
        if self._decode and any(map(holds_images, self.schema)):
            return None

        columns: dict[str, Column] = {}
        if self._window is not None:
            for name, part in self.fetch_batch(keys, OwnMemory()).items():
                columns[name] = part.numpy()
        else:
            read = self._read(keys)
            if self._stacking is not None:
                read = self._stacking.block(read)
            stored = read.columns
            for field in self.schema:
                columns[field.name] = gather.typed(stored[field.name], self._types[field.name])

        return Block(self.block_schema, columns)

    @functools.cached_property
    def block_schema(self) -> Schema:
        """The columns that `block` returns: of the types that were asked for, windows as arrays."""
        if self._window is None:
            length: tuple[int, ...] = ()
        else:
            length = (self._window[0],)

        fields = []
        for field in self.schema:
            shape = (*length, *field.shape)
            fields.append(dataclasses.replace(field, dtype=self._types[field.name], shape=shape))

        return Schema(tuple(fields))

    def fingerprint(self) -> str:
        """Returns a text that changes when the stored files do, by their names, lengths and times, or what is asked."""
        types = {name: dtype.name for name, dtype in self._types.items()}
        with lookup(self._options):
            stamp = stamp_of(self._listed or stamped(self._reader))

        text = f"{stamp} {types} {self._window} {self._decode} {self.schema.to_json()}"
        if self._stacking is not None:
            text += f" {dict(self._stacking.names)}"
        return text

    def _read(self, keys: Keys) -> Block:
        block = self._reader.fetch(keys, self.stored_names).numbered(self._reader.place, keys)
        if monotonic() >= self._look_due:
            self._look_at_files()
        return block

    def _look_at_files(self) -> None:
        """Warns if somebody has written over files that are mapped; raises `FormatError` if one was cut short."""
        if not is_mapped(self.format) or is_url(self.place):
            self._look_due = math.inf
            return
        if self._mapped is None:
            self._mapped = MappedFiles(beginning_of_files(self.place if self._listed is None else self._listed.files))
        self._look_due = self._mapped.look()

    def sample(self, block: Block, place: int) -> dict[str, Any]:
        """Returns one sample of a block as users get it."""
        return {field.name: self._value(field, block, place) for field in self.schema}

    def _is_stacked(self, field: Field) -> bool:
        return self._stacking is not None and field.name in self._stacking.names

    def _value(self, field: Field, block: Block, place: int) -> Any:
        if self._stacking is not None and self._is_stacked(field):
            row = self._stacking.value(field.name, block, place)
            return row.astype(self._types[field.name], copy=False)

        value = value_of(field, block.columns[field.name], place, lambda: f"{self.place}, column {field.name!r}")
        if isinstance(value, str):
            return value

        if isinstance(value, bytes):
            if self._decode and holds_images(field):
                return decode_image(value, block.place_of(place, field.name))
            return value

        if np.ndim(value):
            return np.array(value, self._types[field.name])
        return self._types[field.name].type(value)

    def checked(self, keys: Any) -> Keys:
        """Returns keys as an array, all 0 .. length-1. Raises `IndexError`."""
        return in_range(whole_numbers(keys), len(self))

    # -- batches -------------------------------------------------------------------------------------------------------

    def fetch_batch(self, keys: Any, out: BatchMemory) -> dict[str, Any]:
        """Returns the batch of these keys, each column gathered into `out`. Raises `IndexError` and `FormatError`."""
        plan = self._plan.get(self._make_plan)
        if monotonic() >= self._look_due:
            self._look_at_files()
        if type(keys) is np.ndarray and keys.dtype is INT64 and keys.ndim == 1:
            array = keys
        else:
            array = whole_numbers(keys)
        if not self._checks_keys:
            array = in_range(array, len(self))
        if plan is not None:
            batch = {}
            for name, make in plan:
                batch[name] = make(array, out)
            return batch
        if self._window is not None:
            return self._fetch_windows(array, out)
        return self.collate(self._read(array), out)

    def _fetch_windows(self, keys: Keys, out: BatchMemory) -> dict[str, Any]:
        """Returns a batch of windows that are read from a store."""
        if self._window is None or not isinstance(self._reader, WindowReader):
            raise TypeError(f"{self._reader!r} reads no windows")

        length, stride = self._window
        found = self._reader.fetch_windows(in_range(keys, len(self)) * stride, length, self.schema.names)
        batch = {}
        for field in self.schema:
            column = found[field.name]
            tensor, values = gather.allocate(out, column.shape, self._types[field.name])
            values[...] = column
            batch[field.name] = tensor

        return batch

    def _make_plan(self) -> list[tuple[str, Gather]] | None:
        """Returns what gathers each column; None if they must be read from the files for each batch."""
        plan: list[tuple[str, Gather]] = []
        padder = gather.Padder()
        columns: list[Column] = []
        for name in self.stored_names:
            try:
                found = self._reader.column(name)
            except FormatError:
                # Damage is told of the samples that have it, not of all: they are then read batch by batch.
                if self._window is not None:
                    raise
                found = None

            if found is None:
                return None
            columns.append(found)

        by_name = dict(zip(self.stored_names, gather.with_shared_starts(columns), strict=True))
        for field in self.schema:
            dtype = self._types[field.name]
            if self._stacking is not None and self._is_stacked(field):
                parts: list[Any] = [by_name[name] for name in self._stacking.names[field.name]]
                plan.append((field.name, gather_stacked(parts, dtype)))
                continue

            column = by_name[field.name]
            if self._window is not None:
                plan.append((field.name, gather.windows(column, *self._window, dtype)))  # type: ignore[arg-type]
            elif self._decode and holds_images(field):
                return None
            else:
                plan.append((field.name, gather.of(field, column, dtype, self._ragged, padder)))

        self._checks_keys = self._window is None and all(field.kind == "fixed" for field in self.schema)
        return plan

    def collate(self, block: Block, out: BatchMemory) -> dict[str, Any]:
        """Returns all samples of a block as a batch."""
        batch: dict[str, Any] = {}
        padder = gather.Padder()
        for field in self.schema:
            if self._stacking is not None and self._is_stacked(field):
                shape = (len(block), *field.shape)
                batch[field.name], rows = gather.allocate(out, shape, self._types[field.name])
                self._stacking.fill(field.name, block, rows)
                continue

            column = block.columns[field.name]
            if self._decode and holds_images(field):
                images = []
                for place in range(len(block)):
                    images.append(self._value(field, block, place))

                batch[field.name] = stacked(images, out, field.name)
            else:
                batch[field.name] = gather.whole(field, column, self._types[field.name], self._ragged, out, padder)

        return batch

    def __repr__(self) -> str:
        lines = [f"{self._reader.place}: {len(self):,} samples, {self.format}"]
        for field in self.schema:
            line = f"  {field.name}: {field}"
            if self._stacking is not None and self._is_stacked(field):
                line += f" ({', '.join(self._stacking.names[field.name])})"
            lines.append(line)

        return hide_secrets("\n".join(lines))
