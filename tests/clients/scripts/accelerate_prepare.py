"""Accelerate: `prepare` builds the loader anew from torch's class (with a state: torchdata's), for one rank or more."""

import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from reporting import DataLoader, Numbers, delivered, in_the_loop

if __name__ == "__main__":
    stateful = "stateful" in sys.argv
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful))
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 1)
    model, loader = accelerator.prepare(model, DataLoader(Numbers(21), batch_size=4, shuffle=True, num_workers=1))
    in_the_loop(loader)
    for _ in range(2):
        for features, numbers in loader:
            accelerator.backward(model(features).mean())
            delivered(numbers)
