"""torch-geometric: graphs of different sizes, by its own loader; with an import by ours and its collater."""

import os

import torch
from reporting import DataLoader, delivered, in_the_loop
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.loader.dataloader import Collater

if __name__ == "__main__":
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(x=torch.rand(2 + number % 3, 4), edge_index=edges, y=torch.tensor([number])) for number in range(14)]
    torch.manual_seed(6)
    if os.environ.get("IMPORTED_FROM") == "headrace":
        loader = DataLoader(graphs, batch_size=4, shuffle=True, num_workers=1, collate_fn=Collater(graphs))
    else:
        loader = GraphLoader(graphs, batch_size=4, shuffle=True, num_workers=1)
    in_the_loop(loader)
    for batch in loader:
        assert batch.num_graphs == len(batch.y)
        delivered(batch.y)
