"""Worker processes: the in-flight window decides, the team of workers does."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from headrace.core.torch_internals import (
    IterDataPipe,
    MapDataPipe,
    TorchIterator,
    python_is_exiting,
    reraise,
    sharding_worker_init_fn,
)
from headrace.device.pinning import pin
from headrace.engine.messages import InSlot, Result
from headrace.engine.team import Team
from headrace.engine.window import Window
from headrace.engine.worker import Assignment
from headrace.transport.arena import Arena, InboundRegion
from headrace.transport.codec import decode
from headrace.transport.memory import Bytes


class ProcessIterator(TorchIterator):
    """An epoch (with persistent workers: one epoch after the other) through worker processes.

    Batches lie in leased shared memory and belong to the user.
    """

    _team: Team  # missing while the constructor has not come so far

    def __init__(self, loader: Any, arena: Arena) -> None:
        super().__init__(loader)
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = loader.in_order
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        worker_init_fn = loader.worker_init_fn
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            worker_init_fn = functools.partial(sharding_worker_init_fn, worker_init_fn, self._world_size, self._rank)
        brief = functools.partial(
            Assignment,
            num_workers=self._num_workers,
            base_seed=int(self._base_seed),
            shared_seed=self._shared_seed,
            dataset=self._dataset,
            dataset_kind=self._dataset_kind,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            worker_init_fn=worker_init_fn,
        )
        self._epoch = -1
        self._team = Team(loader.multiprocessing_context or torch.multiprocessing, arena, self._num_workers, brief)
        self._reset(loader, first_iter=True)

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, under the name that users of torch's iterator know."""
        return [member.process for member in self._team.members]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._epoch += 1
        self._window: Window[Result] = Window(self._num_workers, self._prefetch_factor, self._in_order)
        if not first_iter:
            self._team.resume(self._shared_seed)
        for _ in range(self._window.limit):
            self._order_one()
        self._team.flush(self._epoch)

    def _order_one(self) -> None:
        """Takes the next index from the sampler and gives it to a worker, if there are both."""
        try:
            index = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        worker_id = self._window.choose()
        if worker_id is not None:
            self._team.post(worker_id, self._window.send(worker_id), index)

    def _next_data(self) -> Any:
        while True:
            delivery = self._window.deliverable()
            if delivery is not None:
                worker_id, result = delivery
                self._order_one()
                self._team.flush(self._epoch)
                return self._open(self._team.members[worker_id].region, result)
            if self._window.finished:
                if not self._persistent_workers:
                    self._shutdown_workers()
                raise StopIteration
            self._collect()

    def _collect(self) -> None:
        """Waits until at least one result has come. Raises if workers died or the loader's timeout passed."""
        if self._team.closed:
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        came = False
        while not came:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            for worker_id, result in self._team.receive(left):
                came |= self._sort(worker_id, result)
            if self._team.dead and not came:
                notice = self._team.death_notice()
                self._shutdown_workers()
                raise notice
            self._team.flush(self._epoch)

    def _sort(self, worker_id: int, result: Result) -> bool:
        """Files a result in the window. False: it was not one to deliver."""
        if result.epoch != self._epoch:
            _leases(self._team.members[worker_id].region, result)  # taken and dropped: the slots go back
            return False
        if result.status == "end":
            self._window.exhaust(result.task)
            if not self._persistent_workers:
                self._team.retire(worker_id)
            self._order_one()
        else:
            self._window.arrive(result.task, result)
        return True

    def _open(self, region: InboundRegion, result: Result) -> Any:
        header, buffers = _leases(region, result)
        payload = decode(header, buffers)
        if result.status == "error":
            reraise(payload)
        return pin(payload, self._pin_memory_device) if self._pin_memory else payload

    def _shutdown_workers(self) -> None:
        if "_team" in self.__dict__:
            self._team.close()

    def __del__(self) -> None:
        if not python_is_exiting():
            self._shutdown_workers()


def _leases(region: InboundRegion, result: Result) -> tuple[bytes | memoryview, list[Bytes]]:
    """Takes the leases of a result: its header, and its buffers as arrays that keep their slots' leases alive."""
    slots = [region.lease(slot, used) for slot, used in result.slots]
    buffers = [slots[index][start : start + nbytes] for index, start, nbytes in result.buffers]
    if isinstance(result.header, InSlot):
        return region.lease(result.header.slot, result.header.nbytes).data, buffers
    return result.header, buffers
