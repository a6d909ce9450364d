"""Reads one stream on several ranks and workers, each sample once, and goes on with another number of ranks.

    python examples/ranks.py --before 2 --after 3

Starts its own processes. With torchrun, only what `rank` does is needed in your script.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterableDataset

import headrace

GLOBAL_BATCH, LENGTH, STOP = 12, 600, 20


class Log(IterableDataset[int]):
    """A stream that knows where it is, so that nothing is read again after a restart."""

    def __init__(self) -> None:
        self.line = 0

    def __iter__(self) -> Iterator[int]:
        while self.line < LENGTH:
            self.line += 1
            yield self.line - 1
        self.line = 0

    def state_dict(self) -> dict[str, int]:
        return {"line": self.line}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.line = state["line"]


def rank(number: int, world: int, folder: Path, workers: int, stop: int | None) -> None:
    """One training process: reads `stop` batches or all that are left, and saves where it is."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{world}", rank=number, world_size=world
    )
    loader: Any = headrace.DataLoader(Log(), batch_size=GLOBAL_BATCH // world, num_workers=workers, shard="auto")
    checkpoint = folder / "loader.pt"
    if checkpoint.exists():
        loader.load_state_dict(torch.load(checkpoint, weights_only=True))
    lines: list[int] = []
    for step, batch in enumerate(loader, start=1):
        lines += batch.tolist()
        if step == stop:
            break
    states: list[Any] = [None] * world
    torch.distributed.all_gather_object(states, loader.state_dict())
    if number == 0:
        torch.save(headrace.merge_states(states), checkpoint)
    torch.save(lines, folder / f"lines-{world}-{number}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Runs the two worlds and counts the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=int, default=2, choices=[1, 2, 3, 4, 6], help="ranks at first (%(default)s)")
    parser.add_argument("--after", type=int, default=3, choices=[1, 2, 3, 4, 6], help="and after it (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.multiprocessing.spawn(rank, (given.before, folder, 2, STOP), nprocs=given.before)
        first = [line for file in folder.glob("lines-*.pt") for line in torch.load(file)]
        for file in folder.glob("lines-*.pt"):
            file.unlink()
        torch.multiprocessing.spawn(rank, (given.after, folder, 1, None), nprocs=given.after)
        second = [line for file in folder.glob("lines-*.pt") for line in torch.load(file)]
    print(f"{given.before} ranks read {len(first)} lines, then {given.after} ranks read {len(second)}")
    right = sorted(first) == [*range(STOP * GLOBAL_BATCH)] and Counter(first + second) == Counter(range(LENGTH))
    print(f"each of the {LENGTH} lines came once" if right else "lines are MISSING or came TWICE")
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
