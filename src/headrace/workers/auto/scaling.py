"""`num_workers="auto"` and `prefetch_factor="auto"`: workers that are added and retired while training goes on.

With a number of workers that changes, the samples and random numbers of a batch depend on its position alone (`seed=`):
the batches are the same whatever is decided, and whenever.
"""

from __future__ import annotations

import copy
import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.batches.collate import SlotCollate
from headrace.batches.pinning import pin
from headrace.core.activity import private_mark
from headrace.core.machine import cores
from headrace.core.memory import free_memory, memory_of
from headrace.core.torch_internals import torch_default_collate
from headrace.core.world import local_world_size
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.batch_size import batch_bytes
from headrace.telemetry.recording import Batches
from headrace.telemetry.stopwatch import Stopwatch
from headrace.telemetry.timings import Journey, journey_here
from headrace.workers.auto.tuner import Choice, Limits, Taken, Tuner
from headrace.workers.processes.executor import ProcessIterator
from headrace.workers.processes.start import ZygoteKeeper
from headrace.workers.replica import Begin, Cargo, LaneHost, Made, surroundings_kept

LOGGER = logging.getLogger("headrace")

LANES = 32
"""Workers that there may ever be."""

FOR_A_CORE = 8
"""Workers for each core that there may be: those that wait for storage need none."""

LOOK, LOOK_SETTLED = 0.2, 2.0
"""Seconds between two looks at what was measured."""

SHARE = 0.01
"""Share of the time that looking at the workers' memory may take, until the setting is settled."""

SHOWN = 4096
"""Batches that are looked at."""


def tuner_for(loader: Any, *, workers: bool, prefetch: bool) -> Tuner | None:
    """Returns what decides on `workers`, `prefetch` or both, within this process's share of the machine."""
    if not workers and not prefetch:
        return None

    ranks = local_world_size()
    budget = loader.memory_budget or free_memory() // 2 // ranks
    if workers:
        most = min(LANES, max(cores() // ranks, 1) * FOR_A_CORE)
    else:
        most = loader.num_workers

    alone = loader.worker_init_fn is None and loader.sample_timeout is None and loader.timeout == 0
    limits = Limits(most, budget, workers and alone, workers, prefetch)
    return Tuner(limits, Choice(1 if workers else loader.num_workers, 2 if prefetch else loader.prefetch_factor or 2))


class AutomaticIterator(ProcessIterator):
    """Epochs through as many workers as `tuner` says, also none. The tuner outlives the iterator."""

    def __init__(self, loader: Any, arena: Arena, zygotes: ZygoteKeeper, memory: LocalMemory, tuner: Tuner) -> None:
        self._tuner = tuner
        self._memory = memory
        self._loader = weakref.ref(loader)  # which holds this iterator
        self._look_due = self._taken_at = 0.0
        self._taken = Taken(0.0, 0.0)
        self._taken_cost = 0.0
        self._here: Here | None = None
        super().__init__(loader, arena, zygotes)

    # -- what ProcessIterator asks -------------------------------------------------------------------------------------

    def _lanes_of(self, loader: Any) -> int:
        if self._tuner.limits.tunes_workers:
            return LANES
        return int(loader.num_workers)

    def _read_options(self, loader: Any) -> None:
        if loader.prefetch_factor is None:  # as it is while there are no workers
            loader.prefetch_factor = self._tuner.now.prefetch
        super()._read_options(loader)
        self._cargo = self.cargo_for_workers(loader)

    @property
    def tunes_workers(self) -> bool:
        """See `EpochIterator.tunes_workers`."""
        return self._tuner.limits.tunes_workers

    @property
    def wanted_workers(self) -> int:
        """See `EpochIterator.wanted_workers`."""
        return self._tuner.now.workers

    @property
    def _limit(self) -> int:
        return self._tuner.now.workers * self._tuner.now.prefetch

    def _prime(self) -> None:
        self._ended = False
        self._here = None
        super()._prime()

    def _order_one(self) -> None:
        """Gives out as many indices as there is room for: the limit may have changed since."""
        window = self._window
        window.limit = self._limit
        if self.any_lane_will_do:
            window.open_lanes = self._tuner.now.workers

        while window.outstanding < window.limit:
            before = window.outstanding
            super()._order_one()
            if window.outstanding == before:
                return

    def take(self) -> tuple[int, Any]:
        """See `EpochIterator.take`."""
        try:
            return super().take()
        except StopIteration:
            self._ended = True
            raise

    def _next_data(self) -> Any:
        if (now := time.perf_counter()) >= self._look_due:
            self._tune(now)
            self._look_due = time.perf_counter() + (LOOK_SETTLED if self._tuner.settled else LOOK)
        return super()._next_data()

    def _at_end(self) -> Any:
        if self._ended or self._tuner.now.workers:
            return super()._at_end()

        number, index = self.take()
        if self._here is None:
            self._here = Here(self._cargo, self.beginning(), self._memory)

        made, self._journey = self._here.make(index, self._pin_memory, self._pin_memory_device)
        if isinstance(made, Exception):
            self.leaves(number, 0, None, self._here.host.losses(0))
            raise made

        self.leaves(number, 0, made.state, made.losses)
        return made.batch

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _tune(self, now: float) -> None:
        self._dismiss_idle()
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

        pids = [member.process.pid for member in self._team.members if not member.buried]
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
        team = self._team
        begin = self.beginning()
        for worker_id in range(choice.workers):
            if worker_id >= len(team.members):
                team.hire(begin, self._epoch)
            elif team.members[worker_id].buried:
                team.replace(worker_id, begin, self._epoch)
            else:
                continue

            self._recorder.happened("added", f"worker {worker_id} was added", worker_id)

        if (loader := self._loader()) is not None:
            if choice.workers:
                loader.num_workers, loader.prefetch_factor = choice
            else:
                loader.num_workers = 0
                loader.prefetch_factor = None

        self._recorder.adjust(*choice)
        self._order_one()
        self._flush()
        self._dismiss_idle()
        self._tuner.changed(time.perf_counter())

    def _dismiss_idle(self) -> None:
        """Ends the workers that are too many, once they have done what they were given."""
        for worker_id in range(self._tuner.now.workers, len(self._team.members)):
            if not self._team.members[worker_id].buried and not self._unanswered(worker_id):
                self._team.dismiss(worker_id)
                self._recorder.happened("retired", f"worker {worker_id} was retired", worker_id)

    def _say(self) -> None:
        choice = self._tuner.now
        text = f"num_workers={choice.workers}, prefetch_factor={choice.prefetch}: {self._tuner.reason}"
        self._recorder.happened("decided", text)
        LOGGER.info("headrace: %s: %s%s", self._recorder.label, text, " (settled)" if self._tuner.settled else "")


class Here:
    """Makes batches in the thread of the user, as `workers/inline.py` does.

    From a shallow copy of the dataset, so that what it opens is not there when workers are forked later.
    """

    def __init__(self, cargo: Cargo, begin: Begin, memory: LocalMemory) -> None:
        if cargo.collate_fn is torch_default_collate:
            collate: Callable[[Any], Any] = SlotCollate(memory)
        else:
            collate = cargo.collate_fn

        mark = private_mark()
        self._watch = Stopwatch(mark, here=True)
        cargo = replace(cargo, dataset=copy.copy(cargo.dataset))
        self.host = LaneHost(cargo, 0, 1, "inline", collate, mark, watched=False)
        with surroundings_kept(random=True):
            for failure in self.host.begin(begin._replace(lanes=0, states={}), _silent).values():
                raise failure

    def make(self, index: Any, pinned: bool, device: str | None) -> tuple[Made | Exception, Journey]:
        """Returns what becomes of an index, and its journey."""
        self._watch.start()
        made: Made | Exception
        try:
            with surroundings_kept(random=not self.host.tries_unseeded(0)):
                made = self.host.fetch(0, index)
        except Exception as error:  # noqa: BLE001 - the caller raises it, after it has recorded the delivery
            return error, ()

        times = self._watch.made_here()
        nbytes = batch_bytes(made.batch)
        pinning = 0.0
        if pinned:
            made = made._replace(batch=pin(made.batch, device))
            pinning = time.perf_counter() - times[2]

        return made, journey_here(times, nbytes, pinning)


def _silent(*_: object) -> None:
    """Nothing is replayed in a map-style dataset."""
