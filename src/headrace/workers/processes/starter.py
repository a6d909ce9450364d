"""Starts the worker processes of a loader: by what, with which memory, and on which machines."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from headrace.epoch.epoch import Epoch
from headrace.shared_memory.arena import ORDINARY, Arena, HostMemory
from headrace.workers.dispatcher_choice import could_share
from headrace.workers.processes.machines import Machines
from headrace.workers.processes.pool import Regions, WorkerPool
from headrace.workers.processes.start import ForkServers
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.scale import Scale
from headrace.workers.worker_spec import WorkerSpec


@dataclass
class PoolStarter:
    """What the workers of an executor are started with."""

    arena: Arena
    fork_servers: ForkServers
    machines: Machines | None = None
    """Finds other machines; None: all workers run on this one."""
    host: HostMemory = ORDINARY

    @property
    def is_remote(self) -> bool:
        """Whether workers may run on other machines."""
        return self.machines is not None

    def pool(self, epoch: Epoch, scale: Scale) -> WorkerPool:
        """Starts the workers of the first epoch."""
        spec = epoch.spec
        worker_spec = WorkerSpec.for_workers(epoch)
        worker_spec = replace(worker_spec, times_samples=could_share(epoch, scale, remote=self.is_remote))
        if self.machines is not None:
            self.machines.prepare(worker_spec)

        brief = functools.partial(_assignment, self.machines, workers=scale.most, original_errors=spec.original_errors)
        timeout = spec.timeout or None
        find_start = functools.partial(self.fork_servers.start_for, spec.multiprocessing_context, worker_spec, timeout)
        return WorkerPool(find_start, Regions(self.arena, self.host), scale.workers, brief, epoch.beginning())


def _assignment(machines: Machines | None, *, worker_id: int, **given: Any) -> Assignment:
    stand_in = None
    if machines is not None:
        stand_in = machines.stand_in(worker_id)
    return Assignment(worker_id=worker_id, stand_in=stand_in, **given)
