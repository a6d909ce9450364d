"""What workers are told when an epoch begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.core.randomness.counter_based import stream_key

SEED_BITS = (1 << 62) - 1
"""What torch may be seeded with, even when the number of a worker is added."""


class EpochStart(NamedTuple):
    """The beginning of an epoch. `shared_seed` is for data pipes."""

    base_seed: int
    shared_seed: int | None
    replicas: int
    """How many there are in all; 0: no workers."""
    epoch: int
    told: int | None
    """What the dataset's `set_epoch` is called with; None: it is not called."""
    first: int
    """Position of the first sample of a dealt-out stream that was not delivered before."""
    states: Mapping[int, Any]
    """Where replicas go on."""
    killers: Mapping[str, str]
    """Samples that killed workers: the `repr` of their keys, and what is known of it."""
    watch: bool = False
    """Whether to find out if beginning draws from the global random generators (with a seed)."""
    unseeded_first: bool = False
    """Whether batches are made without seeds first, because the dataset is not known to draw random numbers."""
    tell: bool = False
    """Whether workers tell the states with which their replicas begin."""

    def with_other_numbers(self, times: int) -> EpochStart:
        """Returns the beginning for a worker that takes another one's place, for the `times`-th time.

        With its numbers, those that it has drawn would come twice.
        """
        return self._replace(base_seed=stream_key(self.base_seed, times) & SEED_BITS)
