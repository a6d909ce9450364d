"""What an iterator is told of its loader when an epoch begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headrace.core.randomness.unseeded import Seeding
from headrace.epoch.look_ahead import ReadsAhead
from headrace.epoch.slow_samples import SlowSamples
from headrace.faults.counts import FaultCounter
from headrace.faults.policy import Policy


@dataclass(frozen=True)
class LoaderSpec:
    """The arguments of a loader at the beginning of an epoch.

    Taken anew for each epoch, because frameworks set attributes of a loader that they are given.
    """

    dataset: Any
    is_map: bool
    """Whether the dataset has keys; False: it is iterable."""
    batched: bool
    """Whether samples are collated to batches."""
    batch_size: int | None
    drop_last: bool
    index_sampler: Any
    """What gives the indices: the batch sampler, or the sampler where there are no batches."""
    sampler: Any
    """What gives the keys; None where a batch sampler was given."""
    collate_fn: Callable[[Any], Any]
    generator: torch.Generator | None
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    num_workers: int
    prefetch_factor: int | None
    in_order: bool
    persistent_workers: bool
    timeout: float
    """Seconds for which workers may be waited for; 0: for ever."""
    seed: int | None
    sample_timeout: float | None
    original_errors: bool
    defers: bool = False
    """Whether a batch that is late may change places with one that is ready."""


class Shared(NamedTuple):
    """What an epoch shares with those before and after it."""

    policy: Policy | None
    """What becomes of bad samples; None: they raise."""
    fault_counter: FaultCounter
    seeding: Seeding
    ahead: ReadsAhead | None = None
    """Is told of the indices that come next, where somebody reads ahead what they stand for."""
    io_address: str | None = None
    """Of the I/O process through which workers read what lies elsewhere; None: there is none."""
    slow_samples: SlowSamples | None = None
    """What is known of the time that samples take; None: nothing yet."""


class Seeds(NamedTuple):
    """What the seeds of workers and samples are made of."""

    base: int
    of_pipes: int | None
    """What the data pipes of all ranks are seeded with; None: there are none."""
    epoch: int
    """The number of the epoch that samples are seeded with."""
