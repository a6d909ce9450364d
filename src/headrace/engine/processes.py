"""Worker processes: the in-flight window decides, the team of workers does."""

from __future__ import annotations

import functools
import time
from typing import Any

from headrace.core.torch_internals import TorchProcessIterator, python_is_exiting
from headrace.device.pinning import pin
from headrace.engine.messages import InSlot, Result
from headrace.engine.starting import ZygoteKeeper
from headrace.engine.team import Team
from headrace.engine.windowed import WindowedIterator
from headrace.engine.worker import Assignment
from headrace.transport.arena import Arena, InboundRegion
from headrace.transport.codec import decode
from headrace.transport.memory import Bytes


class ProcessIterator(WindowedIterator[Result], TorchProcessIterator):
    """An epoch (with persistent workers: one epoch after the other) through worker processes.

    Batches lie in leased shared memory and belong to the user. torch's own iterator is a base class for the sake of
    `isinstance` only: nothing of it runs.
    """

    _team: Team  # missing while the constructor has not come so far

    def __init__(self, loader: Any, arena: Arena, zygotes: ZygoteKeeper) -> None:
        self._open(loader, workers=loader.num_workers)
        self._read_options(loader)
        brief = functools.partial(
            Assignment,
            begin=self.beginning(),
            workers=self._num_workers,
            original_errors=loader.original_errors,
        )
        start = zygotes.start_for(loader.multiprocessing_context, self.cargo_for_workers(loader))
        self._team = Team(start, arena, self._num_workers, brief)
        self._prime()

    @property
    def _workers(self) -> list[Any]:  # type: ignore[override]
        """The worker processes, under the name that users of torch's iterator know."""
        return [member.process for member in self._team.members]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._reopen(loader)
        self._team.begin(self.beginning())
        self._prime()

    def _post(self, worker: int, task: int, lane: int, index: Any) -> None:
        self._team.post(worker, task, lane, index)

    def _flush(self, least: int = 1) -> None:
        self._team.flush(self._epoch, least)

    def _collect(self) -> None:
        """Waits until at least one result has come. Raises if workers died or the loader's timeout passed."""
        if self._team.closed:
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")
        self._flush()
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        came = False
        while not came:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            if self._team.dead:
                left = 0  # what has come goes to the user; the tasks of the dead will not come
            for worker_id, result in self._team.receive(left):
                came |= self._sort(worker_id, result)
            if self._team.dead and not came:
                notice = self._team.death_notice()
                self._shutdown_workers()
                raise notice
            self._flush()

    def _sort(self, worker_id: int, result: Result) -> bool:
        """Files a result in the window. False: it was not one to deliver."""
        region = self._team.members[worker_id].region
        if result.epoch != self._epoch:
            _leases(region, result)  # taken and dropped: the slots go back
            return False
        if result.status == "replay":
            self._bar.report(*decode(*_leases(region, result)))
            return False
        if result.status == "end":
            if not self._persistent_workers and self.record.lanes == self._num_workers:
                self._team.retire(worker_id)
            self._file_end(result.task)
        else:
            self._file(result.task, result)
        return True

    def _open_result(self, task: int, lane: int, result: Result) -> Any:
        payload, state = decode(*_leases(self._team.members[lane % self._num_workers].region, result))
        self._record_delivery(task, lane, state)
        if result.status == "error":
            payload.raise_again()
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
