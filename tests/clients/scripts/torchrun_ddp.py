"""torchrun: two ranks of plain distributed training, each with torch's DistributedSampler."""

import torch
import torch.distributed as dist
from reporting import DataLoader, Numbers, delivered, in_the_loop
from torch.utils.data.distributed import DistributedSampler

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    dataset = Numbers(21)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    in_the_loop(loader)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for features, numbers in loader:
            model(features).mean().backward()
            delivered(numbers)
    dist.destroy_process_group()
