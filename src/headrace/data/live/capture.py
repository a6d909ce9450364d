"""A stretch of a log as stored data: what `headrace pack kafka://... out` makes, for several epochs over the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.core.errors import DatasetError, UsageError
from headrace.core.spans import SpanKeys
from headrace.data.convert.packed import Packed
from headrace.data.formats.columns import Block
from headrace.data.formats.guards.limits import stored_size
from headrace.data.formats.protocol import Writer
from headrace.data.formats.registry import open_writer
from headrace.data.live.dataset import ColumnsOfLog, LogDataset
from headrace.data.live.rows import RowsOfLog
from headrace.samplers.live import WaitingBatches
from headrace.storage.locations import is_url, local_path

AT_ONCE = 4096
"""Records that are written together."""

PLACE = "headrace.pack"


def capture(log: LogDataset, target: str | os.PathLike[str], format: str, report: Callable[[int, int], None]) -> Packed:
    """Writes all records of a log, up to its end, in the order of the log. Nothing is seen before all is there.

    report: called with (records so far, records in all as far as it is known). Raises `UsageError` for a log without an
    end, `FormatError`, `StorageError`, `DatasetError`.
    """
    place = local_path(target)
    _check(log, place)
    began = time.perf_counter()
    sampler = log.live_sampler(shuffle=False, seed=0, rank=0, world_size=1)
    writer: Writer | None = None
    count = 0
    try:
        for keys in WaitingBatches(sampler.key_batches(AT_ONCE, drop_last=False)):
            block = _block(log, keys)
            if writer is None:
                writer = open_writer(place, block.schema, format)
            writer.append(block)
            count += len(keys)
            reads = sampler.reads()
            report(count, max(count + max(reads.lag, 0), count))
        if writer is None:
            what = "there is nothing to pack"
            raise DatasetError.about(what, place=log.place, found="no records up to the end", expected="one at least")
        writer.seal()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    finally:
        sampler.close()

    path = Path(place)
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    seconds = time.perf_counter() - began
    return Packed(place, format, count, stored_size(files), len(files), 0, 1, seconds)


def _check(log: LogDataset, place: str) -> None:
    if log.endless:
        what = "a source that never ends cannot be packed"
        fix = "say where to stop: --until now, or headrace.follow(..., until='now')"
        raise UsageError.about(what, place=PLACE, found=log.place, expected="until= or idle=", fix=fix)
    if not isinstance(log, (ColumnsOfLog, RowsOfLog)):
        expected = "records with fields, byte strings or texts"
        raise UsageError.about("this cannot be packed", place=PLACE, found=repr(log), expected=expected)
    if is_url(place):
        fix = "pack to a path of this machine, and then `headrace pack PATH URL`"
        what = "a log is packed to a path of this machine"
        raise UsageError.about(what, place=PLACE, found=place, expected="a path", fix=fix)


def _block(log: Any, keys: SpanKeys) -> Block:
    block: Block = log.block(keys)
    return block
