"""torchtitan: its checkpoint manager saves and loads headrace's loader in the place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from resumed import Noisy, asked, join_ranks, steps, workers
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

import headrace


class Loader(BaseDataLoader):
    """headrace's loader as torchtitan's trainer builds one: for the ranks that share no data, by their numbers."""

    def __init__(self, *, dp_world_size: int, dp_rank: int, local_batch_size: int, num_workers: int) -> None:
        self.loader = headrace.DataLoader(
            Noisy(), batch_size=local_batch_size, shuffle=True, num_workers=num_workers, seed=3,
            shard=headrace.Shard(dp_rank, dp_world_size),
        )  # fmt: skip
        self.state = headrace.LoaderState(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Returns the merged states of all ranks."""
        return self.state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from the merged states of any ranks."""
        self.state.load_state_dict(state_dict)


if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    join_ranks()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})
    optimizers = OptimizersContainer.Config(param_groups=[group], implementation="for-loop").build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=1).build(optimizers=optimizers, training_steps=12)
    loader = Loader(
        dp_world_size=dist.get_world_size(), dp_rank=dist.get_rank(), local_batch_size=batch_size,
        num_workers=workers(begun),
    )  # fmt: skip
    manager = CheckpointManager.Config(enable=True, folder=folder, interval=1, keep_latest_k=0).build(
        dataloader=loader, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers, states={},
        sd_adapter=None,
    )  # fmt: skip
    if begun:
        assert manager.load(step=begun)

    for step, (values, _) in steps(loader, begun):
        model(values).mean().backward()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        if step == stop:
            manager.save(step)
            break
    manager.close()
