"""`num_workers="auto"` and `prefetch_factor="auto"`: workers that are added and retired while training goes on.

With a number of workers that changes, the samples and random numbers of a batch depend on its position alone (`seed=`):
the batches are the same whatever is decided, and whenever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from headrace.core.batch_memory import BatchMemory
from headrace.core.copies import shallow_copy
from headrace.core.process.machine import cores
from headrace.core.process.memory import free_memory, memory_of
from headrace.core.world import local_world_size
from headrace.epoch.epoch import Epoch
from headrace.epoch.spec import LoaderSpec
from headrace.telemetry.recording import Batches
from headrace.workers.auto.tuner import Choice, Limits, Taken, Tuner
from headrace.workers.inline import InlineExecutor
from headrace.workers.processes.executor import ProcessExecutor
from headrace.workers.processes.pool import WorkerPool
from headrace.workers.protocol import BatchResult
from headrace.workers.scale import Scale

LOGGER = logging.getLogger("headrace")

MOST_WORKERS = 32
"""Workers that there may ever be."""

FOR_A_CORE = 8
"""Workers for each core that there may be: those that wait for storage need none."""

LOOK, LOOK_SETTLED = 0.2, 2.0
"""Seconds between two looks at what was measured."""

SHARE = 0.01
"""Share of the time that looking at the workers' memory may take, until the setting is settled."""

SHOWN = 4096
"""Batches that are looked at."""


def tuner_for(spec: LoaderSpec, *, workers: bool, prefetch: bool, memory: int | None) -> Tuner | None:
    """Returns what decides on `workers`, `prefetch` or both, within this process's share of the machine.

    memory: bytes that workers and the batches ahead may take; None: half of what is free.
    """
    if not workers and not prefetch:
        return None

    ranks = local_world_size()
    budget = memory or free_memory() // 2 // ranks
    if workers:
        most = min(MOST_WORKERS, max(cores() // ranks, 1) * FOR_A_CORE)
    else:
        most = spec.num_workers

    alone = spec.worker_init_fn is None and spec.sample_timeout is None and spec.timeout == 0
    limits = Limits(most, budget, workers and alone, workers, prefetch)
    first = Choice(spec.num_workers, spec.prefetch_factor or 2)
    if workers:
        first = first._replace(workers=1)
    if prefetch:
        first = first._replace(prefetch=2)
    return Tuner(limits, first)


def scale_of(tuner: Tuner, num_workers: int) -> Scale:
    """Returns how many workers there shall be by a tuner. num_workers: where it does not decide on them."""
    most = num_workers
    if tuner.limits.tunes_workers:
        most = MOST_WORKERS
    return Scale(tuner.now.workers, tuner.now.prefetch, most, changes=True)


class AutoScaler:
    """Makes batches through as many worker processes as `tuner` says, or in the calling thread if it says none.

    It has an executor for each. The tuner outlives it.
    """

    backend: Literal["process"] = "process"

    def __init__(self, processes: ProcessExecutor, memory: BatchMemory, tuner: Tuner) -> None:
        """processes: made with `scale_of`. memory: where batches lie that are made in the calling thread."""
        self._tuner = tuner
        self._processes = processes
        self._memory = memory
        self._recorder = processes.recorder
        self._look_due = 0.0
        self._taken_at = 0.0
        self._taken = Taken(0.0, 0.0)
        self._taken_cost = 0.0
        self._inline: InlineExecutor | None = None

    @property
    def replicas(self) -> int:
        return self._processes.replicas

    @property
    def num_workers(self) -> int:
        return self._tuner.now.workers

    @property
    def scales(self) -> bool:
        return self._tuner.limits.tunes_workers

    @property
    def workers(self) -> list[Any]:
        """The worker processes; those that were retired too."""
        return self._processes.workers

    @property
    def pool(self) -> WorkerPool:
        """The worker processes, seen from here."""
        return self._processes.pool

    @property
    def is_here(self) -> bool:
        return self._processes.is_here

    def start(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._inline = None
        self._processes.start(epoch)

    def next_result(self) -> BatchResult:
        self._processes.owner.check()
        now = time.perf_counter()
        if now >= self._look_due:
            self._tune(now)
            if self._tuner.settled:
                self._look_due = time.perf_counter() + LOOK_SETTLED
            else:
                self._look_due = time.perf_counter() + LOOK

        if self._tuner.now.workers or self._processes.has_work:
            return self._processes.next_result()
        return self._made_here()

    def _made_here(self) -> BatchResult:
        """Makes a batch in the calling thread, while there are no workers and nothing of theirs is out.

        From a shallow copy of the dataset, so that what it opens is not there when workers are forked later.
        """
        if self._inline is None:
            self._inline = InlineExecutor(self._memory, as_fresh=True)
            self._inline.start(self._epoch, dataset=shallow_copy(self._epoch.spec.dataset))

        return self._inline.next_result()

    def prepare(self, count: int, begin: Callable[[Any], Any]) -> None:
        if self._processes.has_work:
            self._processes.prepare(count, begin)

    def is_at_end(self) -> bool:
        return self._processes.is_at_end()

    def close(self) -> None:
        self._processes.close()

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _tune(self, now: float) -> None:
        self._dismiss_idle()
        if self._processes.waits_for_machines:
            # Workers on other machines take seconds to come. What is measured before is not what they bring.
            self._tuner.changed(time.perf_counter())
            return

        recording = self._recorder.recording(SHOWN)
        settled = self._tuner.settled
        self._look_at_memory(now, recording.batches[-16:])
        choice = self._tuner.look(now, recording, self._taken)
        if choice is not None:
            self._change_to(choice)
        if choice is not None or self._tuner.settled != settled:
            self._say()

    def _look_at_memory(self, now: float, latest: Batches) -> None:
        if now < self._taken_at + self._taken_cost / SHARE or self._tuner.now.workers == 0:
            return

        pids = self._processes.pids
        began = time.perf_counter()
        workers = memory_of(pids)
        self._taken_at = time.perf_counter()
        self._taken_cost = max(self._taken_at - began, LOOK_SETTLED * SHARE if self._tuner.settled else 0.0)
        if len(latest):
            batch = float(latest["bytes"].max())
        else:
            batch = self._taken.batch

        self._taken = Taken(workers / max(len(pids), 1), batch)

    def _change_to(self, choice: Choice) -> None:
        self._recorder.adjust(*choice)
        for worker_id in self._processes.change_to(*choice):
            self._recorder.happened("added", f"worker {worker_id} was added", worker_id)
        self._dismiss_idle()
        self._tuner.changed(time.perf_counter())

    def _dismiss_idle(self) -> None:
        for worker_id in self._processes.dismiss_idle():
            self._recorder.happened("retired", f"worker {worker_id} was retired", worker_id)

    def _say(self) -> None:
        choice = self._tuner.now
        text = f"num_workers={choice.workers}, prefetch_factor={choice.prefetch}: {self._tuner.reason}"
        self._recorder.happened("decided", text)
        LOGGER.info("headrace: %s: %s%s", self._recorder.label, text, " (settled)" if self._tuner.settled else "")
