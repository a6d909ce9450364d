"""torchrun: two ranks of plain distributed training over a bucket, each with torch's DistributedSampler."""

import torch
import torch.distributed as dist
from reporting import DataLoader, delivered, in_the_loop
from stored_elsewhere import dataset, features_of
from torch.utils.data.distributed import DistributedSampler

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    samples = dataset()
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=4, sampler=sampler, num_workers=1)
    in_the_loop(loader)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            model(features_of(batch)).mean().backward()
            delivered(batch["number"])
    dist.destroy_process_group()
