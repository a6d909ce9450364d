"""One rank that trains with `torch.distributed.checkpoint`: `... RANK WORLD STORE FOLDER KIND STEPS`.

It goes on from the checkpoint in FOLDER, if there is one, takes STEPS steps (0: all that are left of the epoch), saves,
and prints the batches of this rank.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import headrace

from .elastic_program import Stream

LENGTH = 72
GLOBAL_BATCH = 12


class TensorStream(Stream):
    """A stream whose state is a tensor."""

    def state_dict(self) -> dict[str, Any]:
        return {"position": torch.tensor(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = int(state["position"])


def loader_of(kind: str, rank: int, world: int) -> headrace.DataLoader[Any]:
    """Returns the loader of a rank. With "replicas", two ranks each hold one replica of the model."""
    shard: Any = "auto"
    if kind == "replicas":
        world = max(world // 2, 1)
        shard = headrace.Shard(rank // 2, world)
    if kind == "stream":
        return headrace.DataLoader(TensorStream(LENGTH), GLOBAL_BATCH // world, shard=shard)
    return headrace.DataLoader(torch.arange(LENGTH), GLOBAL_BATCH // world, shuffle=True, seed=3, shard=shard)


def main(rank: int, world: int, store: str, folder: Path, kind: str, steps: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    loader = loader_of(kind, rank, world)
    checkpoint = {"weight": torch.zeros(1), "loader": headrace.LoaderState(loader)}
    if (folder / ".metadata").exists():
        dcp.load(checkpoint, checkpoint_id=folder)

    batches = []
    for batch in islice(loader, steps or None):
        checkpoint["weight"] += 1
        batches.append(batch.tolist())

    dcp.save(checkpoint, checkpoint_id=folder)
    sys.stdout.write(json.dumps([int(checkpoint["weight"]), batches]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
