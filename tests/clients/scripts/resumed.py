"""What scripts have in common that train, are stopped, and go on: their data, arguments, and what they say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from process_group import leave_at_the_end
from torch import Tensor
from torch.utils.data import Dataset

import headrace

leave_at_the_end()

EPOCHS = 2
SAMPLES = 48
STEPS_OF_EPOCH = 6
GLOBAL_BATCH = 8
STDOUT = 1


class Noisy(Dataset[tuple[Tensor, int]]):
    """Samples with noise that their own random numbers give, and their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return index + torch.rand(4), index


def asked() -> tuple[str, int, int, int]:
    """Returns the folder of checkpoints, the step to stop behind (0: none), the step to go on from, the batch size."""
    folder, *numbers = sys.argv[1:]
    stop, begun, batch_size = map(int, numbers)
    return folder, stop, begun, batch_size


def workers(begun: int) -> int:
    """Returns the number of workers: a run that goes on has another one than the run before."""
    return 2 if begun else 1


def join_ranks() -> None:
    """Makes the process group, also of one rank that no launcher has started."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def itself(batch: Any) -> Any:
    """Returns a batch that is made of values and numbers already."""
    return batch


def steps(
    loader: Iterable[Any], begun: int, to: int = STDOUT, content: Callable[[Any], Any] = itself
) -> Iterator[tuple[int, Any]]:
    """Yields the batches of the epochs that are left, each with the number of its step, and says what they hold.

    Which epoch it is, a loop of one's own knows: the loader continues in the middle of it.

    to: the descriptor of the file that it says it to. content: gives the values and numbers of a batch.
    """
    step = begun
    for _ in range(begun // STEPS_OF_EPOCH, EPOCHS):
        for batch in loader:
            step += 1
            told([content(batch)], to)
            yield step, batch


def train_with(make: Callable[[int, int], Any], content: Callable[[Any], Any]) -> None:
    """Trains on all ranks with a loader that a library made, whose class is headrace's.

    make: makes it, of a batch size and a number of workers. content: gives the values and numbers of a batch.
    """
    folder, stop, begun, batch_size = asked()
    join_ranks()
    loader = make(batch_size, workers(begun))
    assert isinstance(loader, headrace.DataLoader)
    if begun:
        loader.load_state_dict(headrace.merge_states(folder, step=begun))

    for step, _ in steps(loader, begun, content=content):
        if step == stop:
            headrace.save_state(loader, folder, step=step)
            break


def stream_with(make: Callable[[int, int], Any], content: Callable[[Any], Any]) -> None:
    """Reads an epoch of a stream on all ranks. Saves the state behind a step and reads on, or goes on from there.

    make: makes the loader, of a batch size and a number of workers. content: gives the values and numbers of a batch.
    """
    folder, stop, begun, batch_size = asked()
    join_ranks()
    loader = make(batch_size, workers(begun))
    if begun:
        loader.load_state_dict(headrace.merge_states(folder, step=begun))

    for step, batch in enumerate(loader, begun + 1):
        told([content(batch)])
        if step == stop:
            headrace.save_state(loader, folder, step=step)


def plain(index: int) -> tuple[Tensor, int]:
    """Returns a sample without noise, for libraries that draw random numbers ahead or for whole batches."""
    return torch.full((4,), float(index)), index


def told(batches: Iterable[Any], to: int = STDOUT) -> None:
    """Says what this rank was trained with: for each batch, its samples with their noise."""
    for values, numbers in batches:
        rows = [[number, *row] for number, row in zip(numbers.tolist(), values.tolist(), strict=True)]
        # In one call, which is one write: ranks share a pipe, and long writes would come mixed.
        os.write(to, f"trained {os.environ.get('RANK', '0')} {json.dumps(rows)}\n".encode())
