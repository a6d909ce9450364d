"""Rank and world size: the one place that asks torch.distributed and the launcher's environment for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import torch.distributed

from headrace.core.errors import UsageError, wrong_argument


class World(NamedTuple):
    """Which of how many training processes this one is: 0 <= rank < size."""

    rank: int
    size: int


ALONE = World(0, 1)


@dataclass(frozen=True)
class Shard:
    """For `DataLoader(shard=)`: which part of the data this process gets, where `torch.distributed` cannot tell.

    With tensor, context or pipeline parallelism, several ranks hold one replica of the model and need the same batches.
    Give all ranks of a replica the same shard: its number in the data-parallel group, and the size of that group.

    Attributes:
        rank: number of the replica, counted from 0.
        world: number of replicas.

    Raises:
        UsageError: not both are whole numbers with 0 <= rank < world.

    Examples:
        >>> loader = headrace.DataLoader([0, 1, 2, 3], batch_size=2, shard=headrace.Shard(rank=0, world=2))
        >>> len(loader)
        1
    """

    rank: int
    world: int

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("world", self.world)):
            if not _is_whole(value):
                raise wrong_argument(name, value, "a whole number", place="headrace.Shard")

        if not 0 <= self.rank < self.world:
            raise UsageError.about(
                "no such shard",
                place="headrace.Shard",
                found=f"rank={self.rank}, world={self.world}",
                expected="whole numbers with 0 <= rank < world",
                fix="give the number of the model replica, and the number of replicas (the data-parallel degree)",
            )


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def current_world() -> World:
    """Returns rank and world size.

    They come from `torch.distributed` where a process group exists, otherwise from the variables `RANK` and
    `WORLD_SIZE` that torchrun and other launchers set; without either, `World(0, 1)`. Raises `UsageError` if the
    variables make no sense.
    """
    if (world := distributed_world()) is ALONE:
        return world_of(os.environ)
    return world


def distributed_world() -> World:
    """Returns rank and world size of the `torch.distributed` process group; `ALONE` if there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return ALONE


def common_store() -> Any:
    """Returns the store through which the ranks of a process group found each other; None if there is no group.

    Keys that are set there can be read by all ranks. Reading waits for a key; `check` does not.
    """
    if distributed_world().size == 1:
        return None
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store  # not there in every build

    return PrefixStore("headrace", _get_default_store())


def local_world_size() -> int:
    """Returns how many training processes share this machine, as torchrun and other launchers say; else 1."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if (value := os.environ.get(name, "")).isdigit():
            return max(int(value), 1)
    return 1


def world_of(environment: Mapping[str, str]) -> World:
    """Returns the world that a launcher's environment describes; `ALONE` if it describes none."""
    rank = environment.get("RANK")
    size = environment.get("WORLD_SIZE")
    if rank is None or size is None:
        return ALONE

    try:
        return checked_world(int(rank), int(size))
    except ValueError as error:
        raise UsageError.about(
            "cannot tell this process's rank",
            place="the environment variables RANK and WORLD_SIZE",
            found=f"RANK={rank!r}, WORLD_SIZE={size!r}",
            expected="whole numbers with 0 <= RANK < WORLD_SIZE",
            fix="start the script with torchrun, or unset both",
        ) from error


def checked_world(rank: int | None, size: int | None) -> World:
    """Returns the world for explicit arguments, filled up from `current_world`. Raises `UsageError` if impossible."""
    if rank is None or size is None:
        around = current_world()
        if rank is None:
            rank = around.rank
        if size is None:
            size = around.size

    if not 0 <= rank < size:
        raise UsageError.about(
            "no such rank",
            found=f"rank={rank}, world_size={size}",
            expected="whole numbers with 0 <= rank < world_size",
            fix="leave both out to take them from torch.distributed or the launcher",
        )

    return World(rank, size)
