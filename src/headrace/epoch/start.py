"""What workers are told when an epoch begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class EpochStart(NamedTuple):
    """The beginning of an epoch. `shared_seed` is for data pipes."""

    base_seed: int
    shared_seed: int | None
    replicas: int
    """How many there are in all; 0: no workers."""
    epoch: int
    announce: bool
    """Whether the dataset's `set_epoch` is called."""
    first: int
    """Position of the first sample of a dealt-out stream that was not delivered before."""
    states: Mapping[int, Any]
    """Where replicas go on."""
    killers: Mapping[str, str]
    """Samples that killed workers: the `repr` of their keys, and what is known of it."""
    seed_globals: bool = True
    """Whether the global random generators are seeded for each sample, too (with a seed)."""
    watch: bool = False
    """Whether to find out if they are drawn from."""
    unseeded_first: bool = False
    """Whether batches are made without seeds first, because the dataset is not known to draw random numbers."""
    tell: bool = False
    """Whether workers tell the states with which their replicas begin."""
