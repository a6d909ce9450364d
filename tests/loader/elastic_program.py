"""A training script for torchrun that is killed and comes back: `python -m tests.loader.elastic_program SETTINGS`.

It goes on from the last complete step in the folder of rank files, and takes steps until there are enough. Each rank
writes the batches that it trains on into a file of its own, and saves its loader's state at every second step.

SETTINGS: JSON with

- `folder`: where all of it is kept; `run`: a number that tells this run from the others;
- `kind`: "map" or "stream"; `workers`: of the loader;
- `pause_at`: at this step, in a run's first attempt, each rank says "paused" and waits to be killed. Rank 0 saves
  before;
- `die_at`: at this step, in a run's first attempt, the last rank kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

import headrace

LENGTH = 96
GLOBAL_BATCH = 12
EPOCHS = 2
EVERY = 2
STEPS = EPOCHS * LENGTH // GLOBAL_BATCH


class Stream(IterableDataset[int]):
    """Whole numbers in their order, with a state."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < self.length:
            self.position += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def loader_of(kind: str, ranks: int, workers: int) -> headrace.DataLoader[Any]:
    size = GLOBAL_BATCH // ranks
    if kind == "stream":
        return headrace.DataLoader(Stream(LENGTH), size, shard="auto", num_workers=workers)
    return headrace.DataLoader(torch.arange(LENGTH), size, shuffle=True, seed=5, shard="auto", num_workers=workers)


def resumed(loader: headrace.DataLoader[Any], states: Path) -> int:
    """Has the loader go on from the last complete step, and returns its number."""
    if not states.exists():
        return 0
    try:
        state = headrace.merge_states(states)
    except headrace.errors.StateError:
        return 0  # the run was killed before a step was complete
    loader.load_state_dict(state)
    return int(state["step"])


def train(settings: dict[str, Any], rank: int, ranks: int) -> None:
    folder = Path(settings["folder"])
    states = folder / "states"
    loader = loader_of(settings["kind"], ranks, settings["workers"])
    step = resumed(loader, states)
    dist.barrier()  # a rank must not save before all have looked for the last step

    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    name = f"{settings['run']}-{attempt}-{rank}-of-{ranks}"
    with (folder / name).open("w") as log:
        while step < STEPS:
            for batch in loader:
                step += 1
                dist.all_reduce(torch.ones(1))  # a step of training, which all ranks take together
                log.write(json.dumps([step, batch.tolist()]) + "\n")
                log.flush()
                if attempt == 0 and step == settings.get("pause_at"):
                    pause(loader, states, step, rank)
                if attempt == 0 and step == settings.get("die_at") and rank == ranks - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step % EVERY == 0:
                    headrace.save_state(loader, states, step)
                if step == STEPS:
                    break


def pause(loader: headrace.DataLoader[Any], states: Path, step: int, rank: int) -> None:
    """Waits to be killed."""
    if rank == 0:
        headrace.save_state(loader, states, step)
    # One write: the lines of several ranks come through one pipe.
    os.write(1, f"paused {rank} {os.getpid()}\n".encode())
    signal.pause()


def main() -> None:
    dist.init_process_group("gloo")
    train(json.loads(sys.argv[1]), dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
