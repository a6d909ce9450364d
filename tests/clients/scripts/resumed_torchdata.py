"""torchdata: nodes with a state as the iterator of a dataset, in headrace's loader, go on in mid-epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torchdata.nodes as nodes
from resumed import SAMPLES, plain, stream_with
from torch.utils.data import IterableDataset

from headrace import DataLoader


class Reader:
    """An iterator over nodes, with their state."""

    def __init__(self, numbers: range) -> None:
        self.loader = nodes.Loader(nodes.Mapper(nodes.SamplerWrapper(numbers), plain))
        self.samples = iter(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return self

    def __next__(self) -> tuple[Any, int]:
        return next(self.samples)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the nodes."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the nodes go on."""
        self.loader.load_state_dict(state)
        self.samples = iter(self.loader)


class Nodes(IterableDataset[tuple[Any, int]]):
    """All samples, by nodes: the loader deals them out."""

    def __iter__(self) -> Reader:
        return Reader(range(SAMPLES))


if __name__ == "__main__":
    stream_with(
        lambda size, workers: DataLoader(Nodes(), batch_size=size, num_workers=workers, seed=3, shard="auto"),
        lambda batch: batch,
    )
