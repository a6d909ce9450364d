"""datasets: a table and a stream, both in torch's format, through a loader with workers."""

import datasets
import torch
from reporting import DataLoader, delivered, in_the_loop

if __name__ == "__main__":
    table = datasets.Dataset.from_dict({"number": list(range(20)), "features": [[float(i)] * 4 for i in range(20)]})
    torch.manual_seed(8)
    loader = DataLoader(table.with_format("torch"), batch_size=6, shuffle=True, num_workers=1)
    in_the_loop(loader)
    for batch in loader:
        delivered(batch["number"])
    stream = table.to_iterable_dataset(num_shards=4).with_format("torch")
    for batch in DataLoader(stream, batch_size=4, num_workers=2):
        delivered(batch["number"])
