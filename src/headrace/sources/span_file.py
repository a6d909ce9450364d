"""A span in memory that processes share: an Arrow file without a name.

It has the columns `partition` and `position`, and those of the records: `value`, of sources whose records are bytes, or
the source's own. Rows lie in the order of `samplers.spans`. The memory is free when the last process has closed it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.sources.log import Records

PARTITION = "__partition"
POSITION = "__position"
VALUE = "value"


def table_of(parts: Sequence[Records]) -> pa.Table:
    """Returns records as the rows of a span. parts: ascending by partition, at least one record."""
    tables = []
    for part in parts:
        if not len(part.positions):
            continue
        if isinstance(part.values, pa.Table):
            table = part.values
        else:
            table = pa.table({VALUE: _bytes(part.values)})

        positions = _numbers(np.asarray(part.positions, np.int64), pa.int64())
        partitions = _numbers(np.full(len(positions), part.partition, np.int32), pa.int32())
        tables.append(table.append_column(PARTITION, partitions).append_column(POSITION, positions))

    return pa.concat_tables(tables).combine_chunks()


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
    descriptor = _nameless_file()
    try:
        with open(os.dup(descriptor), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-span", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
