"""FSDP with torch.distributed.checkpoint: model, optimizer and loader go on from one checkpoint, on any ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from resumed import Noisy, asked, join_ranks, steps, workers
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from headrace import DataLoader, LoaderState


class Learner:
    """A model and its optimizer, as a distributed checkpoint holds them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Returns the shards of this rank."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the shards of this rank."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    join_ranks()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = DataLoader(Noisy(), batch_size=batch_size, shuffle=True, num_workers=workers(begun), seed=3, shard="auto")
    checkpoint = {"learner": Learner(model, optimizer), "loader": LoaderState(loader)}
    if begun:
        dcp.load(checkpoint, checkpoint_id=f"{folder}/{begun}")

    for step, (values, _) in steps(loader, begun):
        model(values).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == stop:
            dcp.save(checkpoint, checkpoint_id=f"{folder}/{step}")
            break
