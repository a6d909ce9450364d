"""Which dispatcher an epoch has: one that may cut batches into parts, where nobody can see that."""

from __future__ import annotations

import time
from typing import Any

from headrace.batches.collate import SlotCollate
from headrace.batches.whole_batches import fetches_batches
from headrace.core.batch_memory import OwnMemory
from headrace.core.protocols import is_stateful
from headrace.core.stragglers import AHEAD
from headrace.core.torch_internals import torch_default_collate
from headrace.epoch.epoch import Epoch
from headrace.telemetry.recorder import Recorder
from headrace.workers.carrier import Watched
from headrace.workers.dispatch import Dispatcher
from headrace.workers.scale import Scale
from headrace.workers.stragglers.early import DrawnAhead
from headrace.workers.stragglers.parts import Join, Parts
from headrace.workers.stragglers.prefetch import may_draw_early, spare_memory


def could_share(epoch: Epoch, scale: Scale, *, remote: bool) -> bool:
    """Tells whether workers make batches of an epoch together and nobody can see it, or would with `seed=`.

    Samples must be loaded one by one and collated by torch's rules. A dataset with a state may count its samples, and
    what becomes of bad ones is decided for whole batches.
    """
    spec = epoch.spec
    if remote or scale.changes or epoch.record.replicas < 2 or is_stateful(spec.dataset):
        return False
    if not epoch.is_map or not spec.batched or not spec.in_order or epoch.is_live:
        return False
    if epoch.policy is not None or not epoch.slow_samples.splits:
        return False
    if spec.collate_fn is not torch_default_collate or SlotCollate(OwnMemory()).memory is None:
        return False
    return not fetches_batches(spec.dataset) and not getattr(spec.dataset, "__getitems__", None)


def dispatcher_for(
    epoch: Epoch, workers: Watched, join: Join, scale: Scale, recorder: Recorder, *, remote: bool, adapts: bool
) -> Dispatcher[Any]:
    """Returns the dispatcher of an epoch, and tells the record how tasks are given out, see `Setting`.

    adapts: whether the number of tasks that a worker holds follows from how long batches take.
    """
    spare = spare_memory(epoch.spec, scale)
    could = could_share(epoch, scale, remote=remote)
    shares = could and epoch.any_replica_will_do
    recorder.note_dispatch(shares=shares, could_share=could, adapts=adapts, spare_memory=spare)

    # A worker on another machine waits for the next task for as long as a message takes.
    ahead = max(scale.prefetch, AHEAD) if remote else AHEAD
    dispatcher: Dispatcher[Any] = Dispatcher(
        epoch,
        scale.most,
        scale.limit,
        time.perf_counter,
        fills=scale.changes or adapts,
        ahead=ahead,
        spare_bytes=spare,
    )
    if shares:
        dispatcher.share(
            Parts(
                dispatcher.tasks,
                DrawnAhead(epoch.take, epoch.slow_samples),
                dispatcher.lateness,
                workers,
                join,
                draws_early=may_draw_early(epoch.spec),
                batch_size=epoch.spec.batch_size or 1,
            )
        )
    return dispatcher
