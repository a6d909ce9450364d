"""Which dispatcher an epoch has: one that may cut batches into parts, where nobody can see that."""

from __future__ import annotations

from typing import Any

from headrace.core.protocols import is_stateful
from headrace.core.stragglers import AHEAD
from headrace.epoch.epoch import Epoch
from headrace.telemetry.recorder import Recorder
from headrace.workers.dispatch import Dispatcher
from headrace.workers.processes.pool import WorkerPool
from headrace.workers.processes.prefetch import spare_memory
from headrace.workers.processes.scale import Scale
from headrace.workers.processes.sharing import SharingDispatcher, could_share_batches, shares_batches


def could_share(epoch: Epoch, scale: Scale, *, remote: bool) -> bool:
    """Tells whether workers make batches of an epoch together, or would with `seed=`."""
    if remote or scale.changes or epoch.record.replicas < 2 or is_stateful(epoch.spec.dataset):
        return False
    return could_share_batches(epoch)


def dispatcher_for(
    epoch: Epoch, pool: WorkerPool, scale: Scale, recorder: Recorder, *, remote: bool, adapts: bool
) -> Dispatcher[Any]:
    """Returns the dispatcher of an epoch, and tells the record how tasks are given out, see `Setting`.

    adapts: whether the number of tasks that a worker holds follows from how long batches take.
    """
    spare = spare_memory(epoch.spec, scale)
    shares = not remote and not scale.changes and shares_batches(epoch)
    recorder.note_dispatch(
        shares=shares,
        could_share=shares or could_share(epoch, scale, remote=remote),
        adapts=adapts,
        spare_memory=spare,
    )
    if shares:
        return SharingDispatcher(epoch, pool, scale, spare_bytes=spare)

    # A worker on another machine waits for the next task for as long as a message takes.
    ahead = max(scale.prefetch, AHEAD) if remote else AHEAD
    fills = scale.changes or adapts
    return Dispatcher(epoch, scale.most, scale.limit, fills=fills, ahead=ahead, spare_bytes=spare)
