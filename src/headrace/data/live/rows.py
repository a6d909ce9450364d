"""A log whose records have columns already: rows of a table that grows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import FormatError, SampleError, warn
from headrace.core.spans import Span, SpanKey, SpanKeys
from headrace.data import gather
from headrace.data.formats.arrow.columns import from_arrow
from headrace.data.formats.arrow.field_types import field_from
from headrace.data.formats.columns import Block, Column, concatenated
from headrace.data.formats.columns.schema import Schema
from headrace.data.live.dataset import LogDataset, own, schema_from_text
from headrace.sources.feed.span_file import PARTITION, POSITION
from headrace.sources.feed.supply import FeedName


class RowsOfLog(LogDataset):
    """Samples are dicts of their columns, as those of a `StoredDataset`."""

    def __getitems__(self, keys: SpanKeys | Sequence[SpanKey]) -> list[Any]:
        samples = []
        for row in self.block(self._checked(keys)):
            samples.append({name: own(value) for name, value in row.items()})
        return samples

    def __repr__(self) -> str:
        return f"{self._source.place}: a table that grows"

    def fetch_batch(self, keys: Any, out: BatchMemory) -> dict[str, Any]:
        """Returns the batch of these keys, column by column."""
        block = self.block(self._checked(keys))
        batch: dict[str, Any] = {}
        padder = gather.Padder()
        for field in block.schema:
            column = block.columns[field.name]
            batch[field.name] = gather.whole(field, column, field.dtype, self._ragged, out, padder)

        return batch

    def block(self, keys: SpanKeys) -> Block:
        """Returns rows, column by column. Raises `SampleError`."""
        schema = schema_from_text(keys.parts[0][0].schema, self.place)
        blocks = []
        for _, table, rows in self._tables(keys):
            taken = table.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)]))
            columns: dict[str, Column] = {}
            for field in schema:
                try:
                    columns[field.name] = from_arrow(field, taken.column(field.name), self.place)
                except (FormatError, KeyError) as error:
                    positions = taken.column(POSITION).to_pylist()[:8]
                    error.add_note(f"headrace: raised while reading the rows with the keys {positions}")
                    raise SampleError(str(error)) from error
            blocks.append(Block(schema, columns))

        return concatenated(schema, blocks)

    def _describe(self, feed: FeedName, span: Span) -> str:
        (found,) = self._tables(SpanKeys(feed, ((span, np.zeros(1, np.int64)),)))
        fields = []
        left_out = []
        for column in found[1].schema:
            if column.name in (PARTITION, POSITION):
                continue
            field = field_from(column.name, column.type)
            if field is None:
                left_out.append(f"{column.name} ({column.type})")
            else:
                fields.append(field)

        if not fields:
            found_types = ", ".join(left_out)
            expected = "numbers, text, bytes, or lists of numbers"
            what = "no column can be used for training"
            raise FormatError.about(what, place=self.place, found=found_types, expected=expected)
        if left_out:
            warn(f"{self.place}: columns of these types are left out: {', '.join(left_out)}")
        return json.dumps(Schema(tuple(fields)).to_json())
