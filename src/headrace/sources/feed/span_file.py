"""A span in memory that processes share: an Arrow file without a name.

It has the columns `partition` and `position`, and those of the records: `value`, of sources whose records are bytes, or
the source's own. Rows lie in the order of `core.spans`. The memory is free when the last process has closed it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.core.process.descriptors import nameless_file
from headrace.sources.log import Records

PARTITION = "__partition"
POSITION = "__position"
VALUE = "value"


def table_of(parts: Sequence[Records]) -> pa.Table:
    """Returns records as the rows of a span, in one piece. parts: ascending by partition, with a record at least."""
    parts = [part for part in parts if len(part.positions)]
    if isinstance(parts[0].values, pa.Table):
        table = pa.concat_tables([part.values for part in parts if isinstance(part.values, pa.Table)])
        table = table.combine_chunks()
    else:
        values = list[bytes]()
        for part in parts:
            values += part.values
        table = pa.table({VALUE: _bytes(values)})

    counts = [len(part.positions) for part in parts]
    partitions = np.repeat(np.array([part.partition for part in parts], np.int32), counts)
    positions = np.concatenate([np.asarray(part.positions, np.int64) for part in parts])
    table = table.append_column(PARTITION, _numbers(partitions, pa.int32()))
    return table.append_column(POSITION, _numbers(positions, pa.int64()))


def _bytes(values: Sequence[bytes]) -> pa.Array:
    """Returns byte strings as an Arrow column. Arrow's own function imports pandas first, where that is installed."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def _numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def write(table: pa.Table) -> int:
    """Writes a table into new shared memory. Returns its descriptor, which belongs to the caller. Raises `OSError`."""
    descriptor = nameless_file("records")
    try:
        # Written, not mapped: the kernel takes new pages in one call, rather than by a fault for each of them.
        with pa.OSFile(f"/dev/fd/{descriptor}", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
