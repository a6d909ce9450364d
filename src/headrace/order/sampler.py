"""Samplers whose order is a function of the position: they start at once, anywhere, on any number of ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sized
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from headrace.core.errors import StateError, UsageError, explain
from headrace.core.world import World, checked_world
from headrace.order.positions import Uneven, checked_uneven, local_range

Keys = npt.NDArray[np.int64]

FIRST_CHUNK, LARGEST_CHUNK = 256, 16384


class ElasticSampler(Sampler[Any]):
    """A sampler that all ranks share, each taking its part, and that goes on anywhere from a small state.

    The ranks must iterate in step. `rank` and `world_size` are taken from `torch.distributed` or the launcher's
    environment where they are left out, each time that an iteration begins.
    """

    elastic: ClassVar[bool] = True
    """Whether a state of it can be loaded by another number of ranks."""

    def __init__(self, *, seed: int, rank: int | None, world_size: int | None, uneven: Uneven) -> None:
        self.seed = seed
        self.uneven = checked_uneven(uneven)
        self.epoch = 0
        self._rank = rank
        self._world_size = world_size
        self._start: Any = None
        self._now: dict[str, Any] = {}
        if rank is not None and world_size is not None:
            checked_world(rank, world_size)

    @property
    def world(self) -> World:
        """The rank for which it samples, and how many there are."""
        return checked_world(self._rank, self._world_size)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that the next iteration makes. The order depends on it."""
        self.epoch = epoch
        self._start = None
        self._now = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after what was yielded last, as plain values: the same on every rank that is in step."""
        return {
            "sampler": type(self).__name__,
            **self._identity(),
            "epoch": self.epoch,
            **self._beginning(),
            **self._now,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has the next iteration go on from a state. Raises `StateError` if it belongs to another sampler."""
        expected = {"sampler": type(self).__name__, **self._identity()}
        found = {name: state_dict.get(name) for name in expected}
        if found != expected:
            message = explain(
                "this state belongs to another sampler",
                place=f"{type(self).__name__}.load_state_dict",
                found=found,
                expected=expected,
                cure="load it into a sampler made with the same arguments, or begin the epoch anew",
            )
            raise StateError(message)
        self.epoch = state_dict["epoch"]
        self._now = {name: state_dict[name] for name in self._beginning()}
        self._start = dict(self._now)

    def _begin(self) -> dict[str, Any]:
        """Returns the state from which an iteration begins that is asked for now."""
        start = self._start if self._start is not None else self._beginning()
        self._start = None
        return dict(start)

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Returns what a state must agree with."""

    def _beginning(self) -> dict[str, Any]:
        """Returns the state at the beginning of an epoch."""
        return {"position": 0}


class PositionalSampler(ElasticSampler):
    """A sampler of single keys, defined by `keys_at`.

    Memory is constant but for what a subclass states. `state_dict()["position"]` is the number of positions that all
    ranks together have used up.
    """

    total: int
    """Positions of one epoch, over all ranks."""

    @abstractmethod
    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """Returns the keys at `positions` (0 .. total-1) of an epoch, an array of the same shape."""

    def __iter__(self) -> Iterator[int]:
        start, epoch, world = self._begin()["position"], self.epoch, self.world
        mine = local_range(start, self.total, world, self.uneven)
        now = self._now = {"position": start}
        done, size = 0, FIRST_CHUNK
        while done < len(mine):
            chunk = mine[done : done + size]
            positions = np.arange(chunk.start, chunk.stop, chunk.step, dtype=np.int64) % self.total
            for number, key in enumerate(self.keys_at(epoch, positions).tolist(), done + 1):
                now["position"] = min(start + number * world.size, self.total)
                yield key
            done, size = done + len(chunk), min(2 * size, LARGEST_CHUNK)

    def __len__(self) -> int:
        return len(local_range(0, self.total, self.world, self.uneven))

    def _identity(self) -> dict[str, Any]:
        return {"total": self.total, "seed": self.seed}


def length_of(dataset: Sized | int) -> int:
    """Returns the length that is meant: of a data set, or the number itself. Raises `UsageError` for anything else."""
    if isinstance(dataset, int) and not isinstance(dataset, bool) and dataset >= 0:
        return dataset
    if isinstance(dataset, Sized):
        return len(dataset)
    message = explain(
        "cannot tell how many samples there are",
        found=f"{dataset!r} of type {type(dataset).__name__}",
        expected="a data set with a length, or a whole number that is not negative",
    )
    raise UsageError(message)


def positive(name: str, value: Any) -> int:
    """Returns `value` if it is a whole number above zero. Raises `UsageError` otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise UsageError(explain("wrong argument", place=f"{name}=", found=repr(value), expected="a whole number above 0"))
