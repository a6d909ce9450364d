"""datasets: a table and streams, in torch's format, through loaders with and without workers."""

import datasets
import torch
from reporting import DataLoader, delivered, in_the_loop, ways_of_workers

if __name__ == "__main__":
    table = datasets.Dataset.from_dict({"number": list(range(20)), "features": [[float(i)] * 4 for i in range(20)]})
    torch.manual_seed(8)
    loader = DataLoader(table.with_format("torch"), batch_size=6, shuffle=True, num_workers=1)
    in_the_loop(loader)
    for batch in loader:
        delivered(batch["number"])
    stream = table.to_iterable_dataset(num_shards=4).with_format("torch")
    for words, epochs in ways_of_workers():
        for kind in (stream, stream.shuffle(seed=3, buffer_size=6)):
            loader = DataLoader(kind, batch_size=4, **words)
            for epoch in range(epochs):
                kind.set_epoch(epoch)
                for batch in loader:
                    delivered(batch["number"])
