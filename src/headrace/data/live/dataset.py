"""A log as a dataset: its samples are the records of spans, decoded where batches are made."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import FormatError, SampleError, UsageError
from headrace.core.spans import Beginning, Span, SpanKey, SpanKeys, SpanSupply
from headrace.data import gather
from headrace.data.formats.arrow.columns import from_arrow
from headrace.data.formats.columns import Block, Column, Keys, joined
from headrace.data.formats.columns.block import value_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.gather import RaggedAs
from headrace.data.live.decoding import LOOKED_AT, Decode, Decoding, block_of, collated, decoder_of, schema_of
from headrace.samplers.live import LiveSampler
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.feed.span_file import PARTITION, POSITION, VALUE
from headrace.sources.feed.span_reader import SpanReader
from headrace.sources.feed.supply import FeedName, commit
from headrace.sources.log import LogSource
from headrace.sources.outage import NoAnswerError
from headrace.sources.ranks import supply_for

log = logging.getLogger("headrace")

BYTES = Field(VALUE, "bytes")
TEXT = Field(VALUE, "text")


class LogDataset(Dataset[Any]):
    """The samples of a log that never ends; made by `headrace.follow`, read by `headrace.DataLoader` only.

    Map-style without a length: the loader has the keys, which name records of spans. Each process that makes batches
    maps the memory of a span and decodes what it needs.

    Args:
        source: what the records are read from.
        feed: where an epoch begins and ends, and what a span is.
        decoding: what makes samples of records.
        columns: as for `headrace.follow`.
        ragged: as for `headrace.follow`.
        options: of the source.

    Examples:
        >>> import sqlite3
        >>> database = sqlite3.connect("points.db")
        >>> _ = database.execute("create table points (id integer primary key, x real)")
        >>> _ = database.execute("insert into points (x) values (0.5), (1.5)")
        >>> database.commit()
        >>> database.close()
        >>> points = headrace.follow("sqlite:///points.db", table="points", key="id", until="now", settle=0)
        >>> [batch["x"].tolist() for batch in headrace.DataLoader(points, batch_size=2)]
        [[0.5, 1.5]]
    """

    def __init__(
        self,
        source: LogSource,
        feed: FeedOptions,
        decoding: Decoding | Decode,
        *,
        columns: Iterable[str] | None = None,
        ragged: RaggedAs = "pad",
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._source = source
        self._feed = feed
        self._decoding = decoding
        self._columns = columns
        self._ragged: RaggedAs = ragged
        self._options = dict(options or {})
        self._spans = SpanReader(source, feed)

    @property
    def place(self) -> str:
        """Where the data come from."""
        return self._source.place

    @property
    def endless(self) -> bool:
        """Whether the data have no end: then an epoch goes on where the one before has stopped."""
        feed = self._feed
        return feed.until is None and feed.most is None and feed.idle is None

    def __getitem__(self, key: SpanKey) -> Any:
        """Returns the sample of a key that the loader gave."""
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: SpanKeys | Sequence[SpanKey]) -> list[Any]:
        """Returns several samples."""
        return self._decoded(self._checked(keys))

    def live_sampler(self, **order: Any) -> LiveSampler:
        """Returns the sampler of a loader. order: its keywords. Raises `UsageError` on other ranks without a group."""
        name = order.pop("name", "")
        alone = order.pop("alone", order.get("world_size") == 1)
        sharers = order.get("world_size") or 1
        begin = functools.partial(self._supply, name, {"begun": 0}, alone, sharers)
        return LiveSampler(begin, endless=self.endless, **order)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Tells the source what a loader's state has behind it. Raises `StateError`, `StorageError`.

        A server that does not answer is told with the next state: a warning says so, and training goes on.
        """
        sampler = state["sampler"]
        if sampler is None or not sampler["spans"]:
            return

        # Shuffled, a span is done with when all of it was delivered.
        spans = [Span.of_state(span) for span in sampler["spans"]]
        positions = {part.partition: part.start for part in spans[0].ranges}
        for span in spans:
            if span.stop <= sampler["position"]:
                positions = span.following()
        try:
            commit(self._source, positions, sampler["source"])
        except NoAnswerError as error:
            text = "%s was not told what is done with, since it does not answer (%s). The next commit tells it."
            log.warning(text, self.place, error.said)

    def path_of_sample(self, key: Any) -> str | None:
        """Returns the place of a sample, such as `kafka://host/topic/3@1042`: partition and position."""
        if not isinstance(key, SpanKey):
            return None

        table = self._spans.table(key.feed, key.span)
        partition = table.column(PARTITION)[key.row]
        position = table.column(POSITION)[key.row]
        return f"{self._source.place}/{partition}@{position}"

    def __repr__(self) -> str:
        what = self._decoding if isinstance(self._decoding, str) else getattr(self._decoding, "__name__", "a function")
        return f"{self._source.place}: a log, decoded as {what}"

    # -- spans ---------------------------------------------------------------------------------------------------------

    def _supply(
        self, name: str, counter: dict[str, int], alone: bool, sharers: int, beginning: Beginning, epoch: int
    ) -> SpanSupply:
        counter["begun"] += 1
        key = f"{name}/spans/{epoch}/{counter['begun']}"
        if alone:
            sharers = 0
        return supply_for(self._source, self._feed, beginning, self._describe, key=key, sharers=sharers)

    def _describe(self, feed: FeedName, span: Span) -> str:
        """Returns what samples look like, by the first span; see `Span.schema`."""
        return ""

    def _checked(self, keys: Any) -> SpanKeys:
        if isinstance(keys, SpanKeys):
            return keys
        if len(keys) and all(isinstance(key, SpanKey) for key in keys):
            return SpanKeys.of(keys)

        found = f"{keys!r:.80}"
        fix = "iterate it with headrace.DataLoader, without sampler= and batch_sampler="
        what = "a log has no numbers for its samples"
        raise UsageError.about(what, place=self.place, found=found, fix=fix)

    def _tables(self, keys: SpanKeys) -> Iterator[tuple[Span, pa.Table, Keys]]:
        for span, rows in keys.parts:
            yield span, self._spans.table(keys.feed, span), rows

    def _decoded(self, keys: SpanKeys) -> list[Any]:
        """Returns what the decoder makes of records."""
        samples: list[Any] = []
        decode = self._decoder
        for span, table, rows in self._tables(keys):
            column: Any = from_arrow(BYTES, table.column(VALUE), self.place)
            starts, lengths = column.pieces(rows)
            pieces = map(slice, starts.tolist(), (starts + lengths).tolist())
            first = len(samples)
            try:
                # What was decoded before an error is in the list.
                samples.extend(map(decode, map(memoryview(column.values).__getitem__, pieces)))
            except Exception as error:
                key = SpanKey(keys.feed, span, int(rows[len(samples) - first]))
                error.add_note(f"headrace: raised while decoding {self.path_of_sample(key)}")
                raise

        return samples

    @functools.cached_property
    def _decoder(self) -> Callable[[Any], Any]:
        decode = decoder_of(self._decoding, self._options)
        if callable(self._decoding):
            return lambda value: decode(bytes(value))
        return decode

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the decoder out: each process makes its own."""
        return {name: value for name, value in vars(self).items() if name != "_decoder"}


class ColumnsOfLog(LogDataset):
    """A log whose batches are made column by column: records with fields, byte strings, texts."""

    def __getitems__(self, keys: SpanKeys | Sequence[SpanKey]) -> list[Any]:
        checked = self._checked(keys)
        block = self.block(checked)
        if self._has_one_column:
            field = block.schema.fields[0]
            return [value_of(field, block.columns[field.name], row) for row in range(len(block))]

        samples = []
        for row in block:
            samples.append({name: own(value) for name, value in row.items()})
        return samples

    def fetch_batch(self, keys: Any, out: BatchMemory) -> Any:
        """Returns the batch of these keys: a dict of columns; of byte strings and texts, the one column."""
        checked = self._checked(keys)
        if not self._has_one_column:
            schema = schema_from_text(checked.parts[0][0].schema, self.place)
            return collated(schema, self._decoded(checked), self._ragged, out)

        block = self.block(checked)
        field = block.schema.fields[0]
        return gather.whole(field, block.columns[VALUE], field.dtype, self._ragged, out)

    @property
    def _has_one_column(self) -> bool:
        return self._decoding in ("bytes", "text")

    def block(self, keys: SpanKeys) -> Block:
        """Returns records, column by column: those of byte strings and texts have the one column "value"."""
        if self._decoding == "bytes":
            return Block(Schema((BYTES,)), {VALUE: self._taken(BYTES, keys)})
        if self._decoding == "text":
            return Block(Schema((TEXT,)), {VALUE: self._texts(keys)})

        schema = schema_from_text(keys.parts[0][0].schema, self.place)
        samples = self._decoded(keys)
        return block_of(schema, samples)

    def _texts(self, keys: SpanKeys) -> Column:
        """Returns records as texts. Raises `UnicodeDecodeError`, which names the first that is none."""
        try:
            return self._taken(TEXT, keys)
        except pa.ArrowInvalid:
            self._decoded(keys)
            raise

    def _taken(self, field: Field, keys: SpanKeys) -> Column:
        """Returns records as byte strings or texts. Raises `ArrowInvalid` for texts that are no UTF-8."""
        columns: list[Any] = []
        for _, table, rows in self._tables(keys):
            # Arrow copies byte strings one by one, which is quicker than an index for each byte.
            wanted = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
            taken = table.column(VALUE).chunk(0).take(wanted)
            if field.kind == "text":
                taken = taken.cast(pa.large_string())
            columns.append(from_arrow(field, taken, self.place))

        if len(columns) == 1:
            only: Column = columns[0]
            return only
        return joined(field, columns)

    def _describe(self, feed: FeedName, span: Span) -> str:
        if self._has_one_column:
            return ""

        rows = np.arange(min(LOOKED_AT, span.count), dtype=np.int64)
        samples = []
        failures = []
        for key in SpanKeys(feed, ((span, rows),)):
            try:
                samples += self._decoded(SpanKeys.of([key]))
            except Exception as error:  # noqa: BLE001 - who makes the batch says what becomes of it
                failures.append((key, error))

        if not samples:
            first, reason = failures[0]
            what = "none of the first records can be decoded"
            found = f"{type(reason).__name__}: {reason}; so are {len(failures):,} records in all"
            expected = f"decode={self._decoding!r}"
            raise SampleError.about(what, place=self.path_of_sample(first), found=found, expected=expected) from reason
        schema, left_out = schema_of(samples, self.place)
        if schema is None:
            what = "records are no mappings of names to values"
            fix = "give decode= a function that makes a sample of the bytes of a record"
            raise FormatError.about(what, place=self.place, found=f"{samples[0]!r:.80}", fix=fix)
        schema = schema.only(self._columns, self.place)
        if left_out and self._columns is None:
            log.warning(
                "%s: fields that are left out, since a batch cannot hold them: %s. To have them, give decode= a "
                "function that makes a sample of the bytes of a record.", self.place, "; ".join(left_out),
            )  # fmt: skip
        return json.dumps(schema.to_json())


@functools.lru_cache(maxsize=16)
def schema_from_text(text: str, place: str) -> Schema:
    """Returns what `Span.schema` says. Raises `SampleError` if nothing is known of the samples."""
    if not text:
        what = "none of the first records can be decoded"
        fix = "correct decode=, or see what the source holds"
        raise SampleError.about(what, place=place, fix=fix)
    return Schema.from_json(json.loads(text), place)


def own(value: Any) -> Any:
    """Returns a value that is no view of mapped memory."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value
