"""What all replicas of an iterator work with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.torch_internals import (
    IterDataPipe,
    MapDataPipe,
    distributed_settings,
    shard_datapipe,
)
from headrace.core.world import World
from headrace.epoch.epoch import Epoch
from headrace.faults.policy import Policy


@dataclass(frozen=True)
class WorkerSpec:
    """What all replicas of an iterator work with. It must be picklable under spawn and forkserver."""

    dataset: Any
    is_map: bool
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    worker_init_fn: Callable[[int], None] | None
    world: World
    seed: int | None
    """Of the random streams; None: random numbers are torch's."""
    deal: bool
    """Whether an iterable dataset is dealt out over ranks and replicas."""
    policy: Policy | None = None
    """What becomes of bad samples; None: they raise."""
    io_address: str | None = None
    """Of the I/O process through which worker processes read what lies elsewhere."""
    times_samples: bool = False
    """Whether workers time samples one by one: they make batches together, or would with `seed=`."""

    @classmethod
    def of(cls, epoch: Epoch) -> WorkerSpec:
        """Returns what replicas of an epoch work with in the calling thread."""
        spec = epoch.spec
        return cls(
            dataset=spec.dataset,
            is_map=spec.is_map,
            batched=spec.batched,
            collate_fn=spec.collate_fn,
            drop_last=spec.drop_last,
            worker_init_fn=spec.worker_init_fn,
            world=epoch.terms.world,
            seed=epoch.terms.seed,
            deal=epoch.terms.deal,
            policy=epoch.policy,
            io_address=epoch.io_address,
        )

    @classmethod
    def for_workers(cls, epoch: Epoch) -> WorkerSpec:
        """Returns what replicas in workers work with; data pipes are split over ranks and workers as torch does it."""
        worker_spec = cls.of(epoch)
        if not isinstance(worker_spec.dataset, (IterDataPipe, MapDataPipe)):
            return worker_spec

        split = functools.partial(shard_datapipe, worker_spec.worker_init_fn, *distributed_settings())
        return replace(worker_spec, worker_init_fn=split)
