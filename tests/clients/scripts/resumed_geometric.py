"""PyTorch Geometric: its own loader of graphs, which `headrace.use()` derives from headrace's, goes on in mid-epoch."""

from __future__ import annotations

import headrace

headrace.use(seed=3, shard="auto")

import torch
from resumed import Noisy, train_with
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader


class Graphs(Dataset[Data]):
    """The same samples as graphs, not all of the same size."""

    def __len__(self) -> int:
        return len(Noisy())

    def __getitem__(self, index: int) -> Data:
        values, number = Noisy()[index]
        edges = torch.zeros((2, 1 + number % 3), dtype=torch.long)
        return Data(x=values[None], edge_index=edges, y=torch.tensor([number]))


if __name__ == "__main__":
    train_with(
        lambda size, workers: DataLoader(Graphs(), batch_size=size, shuffle=True, num_workers=workers),
        lambda batch: (batch.x, batch.y),
    )
