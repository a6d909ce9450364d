"""The whole system in one process, and the reference for every faster path: what this delivers, they deliver.

index = next(sampler) -> samples = dataset[...] -> batch = collate(samples) -> pinned batch
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

from headrace.batches.collate import SlotCollate
from headrace.batches.pinning import pin
from headrace.batches.whole_batches import draws_numbers, makes_batches
from headrace.core.activity import TASK, private_mark
from headrace.core.resumed_generators import ResumedGenerators
from headrace.core.signal_handlers import is_of_signal_handler
from headrace.core.torch_internals import IterDataPipe, MapDataPipe, apply_sharding, torch_default_collate
from headrace.loader.epoch_iterator import EpochIterator
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.batch_size import batch_bytes
from headrace.telemetry.replay_bar import ReplayBar
from headrace.telemetry.stopwatch import Stopwatch
from headrace.telemetry.timings import journey_here
from headrace.workers.replica import LaneHost, Made, surroundings_kept
from headrace.workers.sample_timer import Alarm

LOOK = 5e-3
"""Seconds for which batches are taken to be as large as the last one that was looked at."""


class InlineIterator(EpochIterator):
    """One epoch without workers. Batches collated by default lie in leased memory and belong to the user."""

    backend = "inline"

    def __init__(self, loader: Any, memory: LocalMemory) -> None:
        self._open(loader, workers=0)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            apply_sharding(self._dataset, self._world_size, self._rank)

        collate = self._collate_fn
        if collate is torch_default_collate:
            collate = SlotCollate(memory)

        self._again: tuple[int, Any] | None = None  # the index whose batch is being made
        self._mark = private_mark()
        self._watch = Stopwatch(self._mark, here=True)
        if loader.sample_timeout is None:
            self._alarm = None
        else:
            self._alarm = Alarm(loader.sample_timeout)

        self._host = LaneHost(self.cargo(loader), 0, 1, "inline", collate, self._mark, watched=self._alarm is not None)
        self._nbytes = 0
        self._look_again = 0.0
        self._turns = deque(range(max(self.record.lanes, 1)))  # more than one only after a resume
        self._turns.rotate(-self.next_lane)
        draws = draws_numbers(self._dataset) or not makes_batches(self._dataset, collate)
        self._is_seeded = draws and self._terms.seed is not None
        self._is_alone = self._is_map and self.record.lanes == 0  # then the lane touches nothing but generators
        with self._surroundings(), ReplayBar(self._dataset) as bar:
            for failure in self._host.begin(self.beginning(), bar.report, self._resumed_generators()).values():
                raise failure

        if not self._is_map:  # of which the loader's own dataset is the only copy
            self.note_beginnings(self._host.states_at_beginning())

        self._recorder.prepared()

    def _surroundings(self) -> contextlib.AbstractContextManager[None]:
        """What is around the making of a batch: here it happens between the lines of the user's own program."""
        return surroundings_kept(random=self._terms.seed is not None)

    def _resumed_generators(self) -> ResumedGenerators:
        """Returns what becomes of the global generators while a state is loaded: they are the user's."""
        resume = self._terms.resume
        if resume is None or self._terms.seed is not None:
            return ResumedGenerators()
        return ResumedGenerators(self._behind_order, had_iterator=resume["lanes"] is not None)

    def _make(self, lane: int, index: Any) -> Made:
        if self._alarm is None:
            return self._host.fetch(lane, index)
        self._mark[TASK] += 1
        with self._alarm.armed(self._mark):
            return self._host.fetch(lane, index)

    def _next_data(self) -> Any:
        while True:
            if self._again is None:
                self._again = self.take()
            number, index = self._again
            lane = self._turns[0]
            self._watch.start()
            try:
                if self._is_alone and (not self._is_seeded or self._host.tries_unseeded(lane)):
                    batch, state, losses = self._make(lane, index)
                    if self._is_seeded and self._host.had_to_seed(lane):
                        self._seeding.tries_without = False
                else:
                    with self._surroundings():
                        batch, state, losses = self._make(lane, index)
            except StopIteration:
                self._again = None
                self._ends[lane] = self._host.state(lane)
                if self._is_map or len(self._turns) == 1:
                    raise
                self._turns.popleft()
                continue
            except Exception as error:
                if is_of_signal_handler(error):
                    raise  # the batch is made anew when it is asked for again, as after Ctrl-C
                self._again = None
                self._turns.rotate(-1)
                self.leaves(number, lane, self._host.state(lane), self._host.losses(lane))
                raise

            self.leaves(number, lane, state, losses)
            self._again = None
            self._turns.rotate(-1)
            return self._pinned(batch)

    def is_at_end(self) -> bool:
        """See `EpochIterator.is_at_end`."""
        if self._is_map:
            return super().is_at_end()

        self._pending = None
        try:
            self._ready = (self._produce(time.perf_counter()),)
        except StopIteration:
            return True

        return False

    def _pinned(self, batch: Any) -> Any:
        """Returns a batch as the user gets it, and leaves how it came here."""
        times = self._watch.made_here()
        collated = times[2]
        if collated > self._look_again:
            self._nbytes = batch_bytes(batch)
            self._look_again = collated + LOOK

        pinned = 0.0
        if self._pin_memory:
            batch = pin(batch, self._pin_memory_device)
            pinned = time.perf_counter() - collated

        self._journey = journey_here(times, self._nbytes, pinned)
        return batch
