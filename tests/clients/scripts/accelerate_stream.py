"""Says what Accelerate delivers of a stream that splits itself, which torch's loader reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from process_group import leave_at_the_end
from reporting import delivered

import headrace

leave_at_the_end()


class Stream(torch.utils.data.IterableDataset[int]):
    """The numbers from 0 to 63, of which each worker of each rank takes its part."""

    def __iter__(self) -> Iterator[int]:
        yield from headrace.shard(range(64))


if __name__ == "__main__":
    kind, way, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=way == "dispatched"))
    stream: Any = Stream()
    if kind == "packed":
        packs = headrace.PackedStream(stream, 1, window=10, length=lambda number: 1)
        stream = packs.map(lambda pack: pack.documents[0])
    context = "fork" if workers else None
    loader = torch.utils.data.DataLoader(stream, 4, num_workers=workers, multiprocessing_context=context)
    for batch in accelerator.prepare(loader):
        delivered(batch)
