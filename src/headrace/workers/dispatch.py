"""What the engines with workers share: tasks go out through the in-flight window, results come back through it."""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from headrace.batches.fetch_map import is_stateful
from headrace.batches.pinning import pin
from headrace.core.torch_internals import IterDataPipe, MapDataPipe, sharding_worker_init_fn
from headrace.faults.bad_sample import BadSample
from headrace.loader.epoch_iterator import EpochIterator
from headrace.telemetry.digest import extend_digest
from headrace.telemetry.recording import Trap
from headrace.telemetry.replay_bar import ReplayBar
from headrace.telemetry.stopwatch import Times
from headrace.workers.replica import Cargo
from headrace.workers.window import Window

Result = TypeVar("Result")


class WindowedIterator(EpochIterator, Generic[Result]):
    """An epoch through workers. Subclasses carry tasks to the workers and results back.

    A subclass's constructor calls `_open`, `_read_options`, starts its workers and calls `_prime`.
    """

    _epoch = -1

    def _read_options(self, loader: Any) -> None:
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = loader.in_order
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")

    def cargo_for_workers(self, loader: Any) -> Cargo:
        """Returns what lanes work with; data pipes are split over ranks and workers as torch does it."""
        cargo = self.cargo(loader)
        if not isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            return cargo
        split = functools.partial(sharding_worker_init_fn, loader.worker_init_fn, self._world_size, self._rank)
        return replace(cargo, worker_init_fn=split)

    @abstractmethod
    def _post(self, worker: int, task: int, lane: int, index: Any) -> None:
        """Has a worker do a task; it may wait until `_flush`."""

    @abstractmethod
    def _flush(self, least: int = 1) -> None:
        """Sends what was posted to workers for which there are at least so many tasks by now."""

    @abstractmethod
    def _collect(self) -> None:
        """Waits until at least one result has come, and files it with `_file` or `_file_end`."""

    @abstractmethod
    def _await_beginnings(self) -> None:
        """Waits until all `_untold` lanes have told how they begin, or until it is certain that one will not."""

    @abstractmethod
    def _open_result(self, task: int, lane: int, result: Result) -> Any:
        """Calls `_record_delivery` and returns the batch, or raises the exception that came in its place."""

    @abstractmethod
    def _shutdown_workers(self) -> None:
        """Ends the workers. May be called several times."""

    @property
    def _limit(self) -> int:
        """How many tasks may be out at a time."""
        return int(self._num_workers * self._prefetch_factor)

    def _prime(self) -> None:
        """Begins an epoch, for which the workers are ready."""
        self._epoch += 1
        self._bar = ReplayBar(self._dataset)
        lanes = max(self.record.lanes, 1)
        free = self.any_lane_will_do
        self._window: Window[Result] = Window(lanes, self._limit, self._in_order, free=free, first=self.next_lane)
        self._numbers: dict[int, int] = {}
        self._posted: dict[int, float] = {}
        own_streams = not self._is_map and not self._terms.deal and self.record.lanes > 1
        if own_streams:
            self._firsts: dict[int, int] | None = {}
        else:
            self._firsts = None

        self._indices_out: dict[int, tuple[int, Any]] = {}
        for _ in range(self._window.limit):
            self._order_one()

        self._flush()
        self._await_beginnings()
        self._recorder.prepared()

    def _order_one(self) -> None:
        """Takes the next index from the sampler and gives it to a lane, if there are both."""
        free = self.any_lane_will_do
        if free:
            lane = self._window.choose()
        else:
            lane = None

        if free and lane is None:
            return

        try:
            number, index = self.take()
        except StopIteration:
            return

        # After the sampler was asked, as torch does.
        if not free:
            lane = self._window.choose()

        if lane is not None:
            task = self._window.send(lane)
            self._numbers[task] = number
            self._posted[task] = time.perf_counter()
            self._indices_out[task] = lane, index
            self._post(lane % self._num_workers, task, lane, index)

    def _next_data(self) -> Any:
        while True:
            delivery = self._window.deliverable()
            if delivery is not None:
                self._order_one()
                self._flush(
                    max(self._prefetch_factor // 2, 1)
                )  # a message that wakes a worker costs more than a batch may
                return self._open_result(*delivery)

            if self._window.finished:
                return self._at_end()
            self._collect()

    def _at_end(self) -> Any:
        """Nothing is out any more: ends the epoch."""
        if not self._persistent_workers:
            self._shutdown_workers()
        raise StopIteration

    def is_at_end(self) -> bool:
        """See `EpochIterator.is_at_end`."""
        window = self._window
        if self._is_map:
            return window.finished and super().is_at_end()

        while not window.finished and not any(True for _ in window.undelivered()):
            self._collect()

        return window.finished

    def _unanswered(self, worker: int) -> list[tuple[int, int, Any]]:
        """Returns the tasks that a worker has not answered yet: number, lane, index."""
        tasks = ((task, *self._indices_out[task]) for task in self._window.unanswered())
        return [given for given in tasks if given[1] % self._num_workers == worker]

    def _busy(self) -> list[int]:
        """Returns the workers that have work."""
        lanes = {self._indices_out[task][0] for task in self._window.unanswered()}
        return sorted({lane % self._num_workers for lane in lanes})

    def _states_behind(self, worker: int, state_of: Callable[[Result], Any]) -> dict[int, Any]:
        """Returns the states of lanes behind all that was delivered, and that has arrived from this worker."""
        states = {**self._states, **self._progress.lanes}
        if self._progress.lanes or self._states or not self._is_map or is_stateful(self._dataset):
            for lane, result in self._window.undelivered():
                if lane % self._num_workers == worker:
                    states[lane] = state_of(result)

        return states

    def _file(self, task: int, result: Result) -> None:
        del self._indices_out[task]
        self._window.arrive(task, result)
        if self.any_lane_will_do:
            self._order_one()

    def _file_end(self, task: int, state: Any) -> None:
        """Files that the lane of a task has no data left, and its state behind the end."""
        self._ends[self._indices_out[task][0]] = state
        self._window.exhaust(task)
        self._order_one()

    def _pinned(
        self, task: int, batch: Any, worker: int, nbytes: int, times: Times, arrived: float, opening: float
    ) -> Any:
        """Returns a batch as the user gets it, and leaves how it came here. `opening`: when its unpacking began."""
        opened = time.perf_counter()
        if self._firsts is not None:
            self._compare_streams(worker, batch)

        begun, loaded, collated, sent, *cpu = times
        pinned = 0.0
        if self._pin_memory:
            batch = pin(batch, self._pin_memory_device)
            pinned = time.perf_counter() - opened

        posted = self._posted.pop(task)
        self._journey = worker, nbytes, posted, begun, loaded, collated, sent, arrived, *cpu, opened - opening, pinned
        return batch

    def _compare_streams(self, worker: int, batch: Any) -> None:
        """Notes it as a trap if the first batches of two workers' own streams are the same."""
        firsts = self._firsts or {}
        if worker not in firsts:
            digest = extend_digest(0, batch)
            if digest in firsts.values():
                name = type(self._dataset).__name__
                self._recorder.trapped(
                    Trap("stream-repeats", f"The workers' streams of {name} begin with the same batch.")
                )

            firsts[worker] = digest

        if len(firsts) < self.record.lanes:
            self._firsts = firsts
        else:
            self._firsts = None

    def _record_delivery(self, task: int, lane: int, state: Any, losses: Sequence[BadSample] = ()) -> None:
        self.leaves(self._numbers.pop(task), lane, state, losses)
