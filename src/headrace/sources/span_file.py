"""A span in memory that processes share: an Arrow file without a name.

It has the columns `partition` and `position`, and those of the records: `value`, of sources whose records are bytes, or
the source's own. Rows lie in the order of `samplers.spans`. The memory is free when the last process has closed it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

import numpy as np
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
            table = pa.table({VALUE: pa.array(part.values, pa.large_binary())})

        positions = pa.array(np.asarray(part.positions, np.int64))
        partitions = pa.array(np.full(len(positions), part.partition, np.int32))
        tables.append(table.append_column(PARTITION, partitions).append_column(POSITION, positions))

    return pa.concat_tables(tables).combine_chunks()


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
