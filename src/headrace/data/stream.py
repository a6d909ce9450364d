"""Stored data as an iterable dataset: read from the first sample to the last, each worker its part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import wrong_argument
from headrace.core.protocols import says_yes
from headrace.core.randomness.rng import rng
from headrace.core.sharding import current_part, shard
from headrace.data import gather
from headrace.data.formats.columns import Array, Block, Keys, concatenated
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.protocol import Reader
from headrace.data.formats.tar.sample_reader import new_bytes
from headrace.data.stream_ahead import StreamAhead
from headrace.data.stream_steps import FluentStream
from headrace.faults.classify import is_never_skipped


@runtime_checkable
class Sharded(Protocol):
    """A reader whose data lie in shards that can be read without looking at the others."""

    def shard_count(self) -> int:
        """Returns how many shards there are."""

    def shard_length(self, number: int) -> int:
        """Returns how many samples a shard has."""

    def run_length(self) -> int:
        """Returns how many samples are best read at a time."""

    def fetch_pieces(
        self, pieces: Sequence[tuple[int, Keys]], names: Sequence[str], empty: Callable[[int], Array]
    ) -> Block:
        """Returns the samples of `pieces`, each (shard, numbers within it), one after the other.

        What is read goes into `empty(bytes)`, uint8 [bytes], called once.
        """


class StreamedDataset(Protocol):
    """What a stream needs of the dataset that it reads: `StoredDataset` has it."""

    schema: Schema

    @property
    def reader(self) -> Reader:
        """What reads the stored form."""

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The columns that are read of it."""

    def sample(self, block: Block, place: int) -> dict[str, Any]:
        """Returns one sample of a block as users get it."""

    def collate(self, block: Block, out: BatchMemory) -> dict[str, Any]:
        """Returns all samples of a block as a batch."""

    def encoded(self, part: str | int | None) -> StreamedDataset:
        """Returns the data with the images in this part of a sample left encoded."""


class StoredStream(FluentStream):
    """Samples, each a dict, one after the other; made by `StoredDataset.stream`.

    Shards (where there are fewer shards than workers: runs of neighbours) are dealt out over the workers of all ranks,
    each to exactly one. Resumes in mid-epoch without reading again, apart from the samples that were being mixed.

    Args:
        dataset: the stored data.
        shuffle: how many neighbouring samples are mixed, at least; 0: in order.

    Raises:
        UsageError: `shuffle` is no whole number from 0 up.

    Examples:
        >>> np.save("x.npy", np.arange(4))
        >>> stream = headrace.open("x.npy").stream(shuffle=2)
        >>> list(headrace.DataLoader(stream, batch_size=4))
        [{'data': tensor([...])}]
    """

    def __init__(self, dataset: StreamedDataset, shuffle: int) -> None:
        if not isinstance(shuffle, int) or isinstance(shuffle, bool) or shuffle < 0:
            raise wrong_argument("shuffle", shuffle, "a whole number, 0 or above", place="stream")

        self._dataset = dataset
        self._shuffle = shuffle

    def __iter__(self) -> StreamIterator:
        reader = self._dataset.reader
        if isinstance(reader, Sharded) and reader.shard_count() >= current_part().parts:
            units: list[Any] = list(shard(range(reader.shard_count())))
        else:
            units = list(shard(reader.blocks()))

        if self._shuffle:
            seed = int(rng().integers(1 << 62))
        else:
            seed = 0

        return StreamIterator(self._dataset, units, self._shuffle, seed)

    @property
    def place(self) -> str:
        """Where the data lie, as it was given; empty if that is not known."""
        return str(getattr(self._dataset, "place", ""))

    @property
    def lies_elsewhere(self) -> bool:
        """Whether samples are read from an object store or a server."""
        return says_yes(self._dataset, "lies_elsewhere")

    def encoded(self, part: str | int | None) -> StoredStream:
        return StoredStream(self._dataset.encoded(part), self._shuffle)

    def __repr__(self) -> str:
        return f"stream of {self._dataset!r}"


class StreamIterator:
    """One pass over some units: shards (by their numbers) or runs of samples (ranges).

    Samples are read into a window and handed out from it; with `shuffle`, in random order, from a window of at least so
    many. `seed` decides that order, so that a state is a few numbers.

    Samples that cannot be read raise one by one, behind the others of their window: the iterator goes on behind them.
    """

    def __init__(self, dataset: StreamedDataset, units: Sequence[Any], shuffle: int, seed: int) -> None:
        self._dataset = dataset
        self._units = units
        self._shuffle = shuffle
        self._seed = seed
        self._in_shards = bool(units) and not isinstance(units[0], range)
        self._begin(0, 0)

    def _begin(self, unit: int, first: int) -> None:
        """Goes to sample `first` of a unit, the first of a window."""
        self._window_at = unit, first
        self._next_at = unit, first
        self._window: Block | None = None
        self._used = 0
        self._failures: list[Exception] = []
        self._raised = 0
        self._one_by_one_until: tuple[int, int] | None = None
        order = np.random.default_rng([self._seed, 1]).permutation(len(self._units))
        if self._shuffle:
            self._order = order.tolist()
        else:
            self._order = list(range(len(self._units)))

        self._ahead: StreamAhead | None = None

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._is_used_up():
            self._fill()
        if self._window is None:
            self._raise_a_failure()
            raise StopIteration

        self._used += 1
        return self._dataset.sample(self._window, self._used - 1)

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the last sample that `next` gave comes from. part: a column, if only one is meant."""
        names = self._dataset.schema.names
        if self._window is None or not names:
            return "a sample"

        column = names[0]
        if isinstance(part, str) and part in names:
            column = part
        return self._window.place_of(self._used - 1, column)

    def next_batch(self, count: int, out: BatchMemory) -> tuple[Any, int]:
        """Returns the next batch, collated in `out`, and how many samples it has; 0 at the end."""
        parts: list[Block] = []
        while count:
            if self._is_used_up():
                self._fill(count, out)
            if self._window is None:
                self._raise_a_failure()
                break

            length = len(self._window)
            if self._used == 0 and length <= count:
                part = self._window
            else:
                part = self._window.rows(self._used, min(self._used + count, length))

            self._used += len(part)
            count -= len(part)
            parts.append(part)

        if not parts:
            return None, 0

        block = concatenated(parts[0].schema, parts)
        return self._dataset.collate(block, out), len(block)

    def _is_used_up(self) -> bool:
        """Tells whether the next window is wanted; raises if a sample of this one could not be read."""
        if self._window is not None and self._used < len(self._window):
            return False
        self._raise_a_failure()
        return True

    def _raise_a_failure(self) -> None:
        if self._failures:
            self._raised += 1
            raise self._failures.pop(0)

    def _fill(self, count: int | None = None, out: BatchMemory | None = None) -> None:
        """Reads the next window; none at the end. With `count` and `out`: what a batch lacks, into its memory."""
        self._window = None
        self._used = 0
        self._raised = 0
        self._window_at = self._next_at
        blocks = []
        held = 0
        while (held == 0 and not self._failures) or held < self._shuffle:
            block = self._read_what_can_be(count, out)
            if block is None:
                break
            if len(block):
                blocks.append(block)
                held += len(block)

        if not blocks:
            return

        window = concatenated(blocks[0].schema, blocks)
        if self._shuffle:
            unit, first = self._window_at
            window = window.take(np.random.default_rng([self._seed, 2, unit, first]).permutation(len(window)))

        self._window = window

    def _read_what_can_be(self, count: int | None, out: BatchMemory | None) -> Block | None:
        """Returns the next samples; None at the end. Where they cannot be read, they are tried one by one."""
        self._read_ahead()
        while True:
            begun = self._next_at
            alone = self._one_by_one_until is not None and begun < self._one_by_one_until
            try:
                if alone:
                    return self._read(1, None)
                if self._shuffle:
                    return self._read(None, None)
                return self._read(count, out)
            except Exception as error:
                if is_never_skipped(error):
                    raise
                if self._next_at == begun:
                    # The shard cannot be opened, so that nobody knows its samples: it is left behind as a whole.
                    self._next_at = (begun[0] + 1, 0)
                    alone = True
                if alone:
                    self._failures.append(error)
                    continue

                self._one_by_one_until = self._next_at
                self._next_at = begun

    def _read_ahead(self) -> None:
        """Has the units behind this one read ahead, where they lie elsewhere."""
        if not says_yes(self._dataset, "lies_elsewhere"):
            return

        if self._ahead is None:
            units = [self._units[number] for number in self._order]
            self._ahead = StreamAhead(self._dataset.reader, self._dataset.stored_names, units)
        self._ahead.reached(self._next_at[0])

    def _read(self, count: int | None, out: BatchMemory | None) -> Block | None:
        """Returns the next samples, up to `count`; None at the end."""
        if not self._in_shards:
            count_read: int | None
            if out is None and count == 1:
                count_read = 1
            else:
                count_read = None

            return self._read_run(count_read)

        reader: Any = self._dataset.reader
        wanted = count or reader.run_length()
        pieces: list[tuple[int, Keys]] = []
        while wanted and self._next_at[0] < len(self._units):
            position, first = self._next_at
            unit = self._units[self._order[position]]
            stop = min(first + wanted, reader.shard_length(unit))
            if stop > first:
                pieces.append((unit, np.arange(first, stop)))
                wanted -= stop - first

            if wanted == 0:
                self._next_at = (position, stop)
            else:
                self._next_at = (position + 1, 0)

            # A window begins in one unit, so that a state can name it.
            if out is None:
                break

        if not pieces:
            if self._next_at[0] >= len(self._units):
                return None
            return self._read(count, out)

        if out is None:
            empty = new_bytes
        else:
            empty = functools.partial(_bytes_of, out)

        block: Block = reader.fetch_pieces(pieces, self._dataset.stored_names, empty)
        return block

    def _read_run(self, most: int | None) -> Block | None:
        """Returns the rest of a run of samples, or `most` of it."""
        while self._next_at[0] < len(self._units):
            position, first = self._next_at
            unit = self._units[self._order[position]]
            start = unit.start + first
            if most is None:
                stop = unit.stop
            else:
                stop = min(start + most, unit.stop)

            if stop >= unit.stop:
                self._next_at = (position + 1, 0)
            else:
                self._next_at = (position, first + stop - start)

            if start < stop:
                keys = np.arange(start, stop)
                reader = self._dataset.reader
                return reader.fetch(keys, self._dataset.stored_names).numbered(reader.place, keys)

        return None

    def state_dict(self) -> dict[str, Any]:
        """Returns where the window began, and how many samples of it were handed out, and how many could not be."""
        return {"seed": self._seed, "window": list(self._window_at), "used": self._used, "raised": self._raised}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind what was handed out."""
        self._seed = state_dict["seed"]
        self._begin(*state_dict["window"])
        left = state_dict["used"]
        raised = state_dict.get("raised", 0)
        if raised and not left:
            self._fill()

        # Windows may be smaller than the one of the state, which was as large as a batch.
        while left:
            self._fill()
            if self._window is None:
                return
            self._used = min(left, len(self._window))
            left -= self._used

        self._failures = self._failures[raised:]
        self._raised = raised


def _bytes_of(out: BatchMemory, count: int) -> Array:
    return gather.allocate(out, (count,), np.dtype(np.uint8))[1]
