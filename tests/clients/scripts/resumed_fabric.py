"""Lightning Fabric: saves and loads the state of a loader, which `headrace.use()` gives, beside the model."""

from __future__ import annotations

import headrace

headrace.use(seed=3, shard="auto")

import os

import torch
from lightning.fabric import Fabric
from resumed import Noisy, asked, steps, workers
from torch.utils.data import DataLoader

if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    fabric.launch()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.01))
    own = DataLoader(Noisy(), batch_size=batch_size, shuffle=True, num_workers=workers(begun))
    loader = fabric.setup_dataloaders(own)
    state = {"model": model, "optimizer": optimizer, "loader": headrace.LoaderState(own)}
    if begun:
        fabric.load(f"{folder}/{begun}.ckpt", state)

    for step, (values, _) in steps(loader, begun):
        fabric.backward(model(values).mean())
        optimizer.step()
        optimizer.zero_grad()
        if step == stop:
            fabric.save(f"{folder}/{step}.ckpt", state)
            break
