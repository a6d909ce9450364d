"""DDP under torchrun: each rank saves the state of its loader, and goes on from the states of all ranks."""

from __future__ import annotations

import torch
from resumed import Noisy, asked, join_ranks, steps, workers

import headrace

if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    join_ranks()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = headrace.DataLoader(
        Noisy(), batch_size=batch_size, shuffle=True, num_workers=workers(begun), seed=3, shard="auto"
    )
    if begun:
        loader.load_state_dict(headrace.merge_states(folder, step=begun))

    for step, (values, _) in steps(loader, begun):
        model(values).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == stop:
            headrace.save_state(loader, folder, step=step)
            break
