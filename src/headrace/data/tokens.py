"""Windows of a long row of tokens, and the same windows one token later: what a language model learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.core.batch_memory import BatchMemory, OwnMemory
from headrace.core.errors import FormatError, wrong_argument
from headrace.core.process.per_process import Handle
from headrace.core.text.secrets import hide_secrets
from headrace.data.fluent import Fluent
from headrace.data.formats.columns import Array, Keys
from headrace.data.formats.flat import COLUMN
from headrace.data.formats.protocol import Reader, WindowReader
from headrace.data.formats.shards import stamp_of
from headrace.data.gather import allocate, in_range, whole_numbers
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.listing import lookup

INT64 = np.dtype(np.int64)


class _Windows(NamedTuple):
    """What one process has of the windows."""

    rows: Array | None
    """A view [len, window + 1] of the tokens, which shares their memory; None if they do not lie in memory."""


class TokenWindows(Fluent, Dataset[dict[str, Any]]):
    """Sample k is `inputs`, tokens `k * stride` to `k * stride + window - 1`, and `targets`, those one later.

    Both are int64 [window], copies; a batch is made without Python per sample. Made by `headrace.open_tokens`. With
    `stride=window` each token is an input once, but for fewer than `window + 1` at the end, which fill no window.

    Attributes:
        window: tokens of a sample.
        stride: tokens from one sample to the next.

    Args:
        reader: of one column, `tokens`, that lies in memory or is read by windows.
        window: tokens of a sample.
        stride: tokens from one sample to the next; `window` if it is not given.
        options: of the store in which the tokens lie.

    Raises:
        UsageError: wrong arguments.
        FormatError: there are fewer tokens than a window needs.

    Examples:
        >>> np.arange(9, dtype=np.uint16).tofile("train.bin")
        >>> tokens = headrace.open_tokens("train.bin", "uint16", window=4, stride=2)
        >>> len(tokens)
        3
    """

    def __init__(
        self,
        reader: Reader,
        window: int,
        stride: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        if stride is None:
            stride = window

        for name, value in (("window", window), ("stride", stride)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise wrong_argument(name, value, "a whole number above 0", place="headrace.open")

        if len(reader) < window + 1:
            raise FormatError.about(
                "the window is longer than the data",
                place=reader.place,
                found=f"{len(reader):,} tokens",
                expected=f"at least {window + 1:,}: a window of {window:,} and the target of its last token",
                fix="choose a smaller window=",
            )

        self.window = int(window)
        self.stride = int(stride)
        self._reader = reader
        self._options = options
        self._windows: Handle[_Windows] = Handle()

    def _open(self) -> _Windows:
        tokens = self._reader.column(COLUMN)
        if tokens is None:
            return _Windows(None)

        view = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), self.window + 1)
        return _Windows(view[:: self.stride])

    @property
    def place(self) -> str:
        """Where the data lie, as it was given."""
        return self._reader.place

    @property
    def lies_in_memory(self) -> bool:
        """Whether batches are gathered from memory, or from files that are mapped into it."""
        return self._windows.get(self._open).rows is not None

    @property
    def lies_elsewhere(self) -> bool:
        """Whether windows are read, each by a range, from an object store or a server."""
        return isinstance(self._reader, WindowReader)

    def byte_ranges(self, keys: Keys) -> list[ByteRange]:
        """Returns which byte ranges windows are, where they lie elsewhere. keys: int64 [n], 0 .. length-1."""
        if not isinstance(self._reader, WindowReader):
            return []
        return self._reader.window_ranges(in_range(keys, len(self)) * self.stride, self.window + 1, [COLUMN])

    def __len__(self) -> int:
        return (len(self._reader) - 1 - self.window) // self.stride + 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns sample number `index`, counted from the end if negative. Raises `IndexError`."""
        return self.__getitems__([index])[0]

    def __getitems__(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        """Returns several samples, read together."""
        batch = self.fetch_batch(keys, OwnMemory())
        samples = []
        for row in range(len(keys)):
            samples.append({name: part[row].numpy() for name, part in batch.items()})

        return samples

    def fetch_batch(self, keys: Any, out: BatchMemory) -> dict[str, torch.Tensor]:
        """Returns the batch of these keys: `inputs` and `targets`, int64 [batch, window]. Raises `IndexError`."""
        rows = self._rows(in_range(whole_numbers(keys), len(self)))
        inputs, values = allocate(out, (len(rows), self.window), INT64)
        values[...] = rows[:, :-1]
        targets, values = allocate(out, (len(rows), self.window), INT64)
        values[...] = rows[:, 1:]
        return {"inputs": inputs, "targets": targets}

    def _rows(self, keys: Keys) -> Array:
        """Returns [keys, window + 1]: each window, and the target of its last token."""
        rows = self._windows.get(self._open).rows
        if rows is not None:
            taken: Array = rows[keys]
            return taken
        if not isinstance(self._reader, WindowReader):
            raise TypeError(f"{self._reader!r} has neither its tokens in memory nor windows")
        return self._reader.fetch_windows(keys * self.stride, self.window + 1, [COLUMN])[COLUMN]

    def fingerprint(self) -> str:
        """Returns a text that changes when the stored file does, or what is asked of it."""
        with lookup(self._options):
            stamp = stamp_of(self.place)

        return f"{stamp} {self._reader.schema.to_json()} {self.window} {self.stride}"

    def __repr__(self) -> str:
        dtype = self._reader.schema[COLUMN].dtype
        line = f"{self.place}: {len(self):,} windows of {self.window:,} tokens, one each {self.stride:,}"
        return f"{hide_secrets(line)}\n  {len(self._reader):,} tokens of {dtype.name}"
