"""What an executor knows of its workers on other machines, and what the messages of their proxies mean."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

from headrace.core.errors import UsageError
from headrace.shared_memory.by_value import TravellingObject, pack_travelling
from headrace.workers.processes.machines import MachineNews
from headrace.workers.processes.messages import Result
from headrace.workers.remote.placement import Placement
from headrace.workers.remote.proxy import RemoteWorker
from headrace.workers.worker_spec import WorkerSpec


class RemoteWorkers:
    """The remote workers of one executor; see `Machines`. Those of smaller numbers than `first` run on this machine."""

    def __init__(self, placement: Placement) -> None:
        self.first = placement.local
        self.lost: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self._placement = placement
        self._travelling: TravellingObject

    def prepare(self, worker_spec: WorkerSpec) -> None:
        """Packs the worker spec.

        Raises `UsageError` if it cannot be pickled, and `MissingExtraError` without cloudpickle.
        """
        # The I/O process of this machine cannot be reached from another one: there each worker reads by itself.
        self._travelling = _packed(replace(worker_spec, io_address=None))

    def stand_in(self, worker_id: int) -> RemoteWorker | None:
        """Returns what makes a proxy of a worker; None: it runs on this machine. Raises `ClusterError`."""
        if worker_id < self.first:
            return None
        return RemoteWorker(self._placement.open_door(), self._travelling)

    def note(self, worker_id: int, result: Result) -> MachineNews:
        """Reads what a proxy tells of itself."""
        content = pickle.loads(result.header)  # type: ignore[arg-type]  # it is always short
        if result.status == "placed":
            host, pid = content
            return MachineNews("placed", host, pid)

        if result.status == "lost":
            self.lost.setdefault(worker_id, content)
            return MachineNews("lost", content)
        if result.status == "refused":
            self.refused[worker_id] = content
            return MachineNews("refused", content)
        return MachineNews("waiting", content)


def _packed(worker_spec: WorkerSpec) -> TravellingObject:
    """Packs a worker spec. Raises `UsageError` that names the part of it which cannot be pickled."""
    try:
        return pack_travelling(worker_spec)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise UsageError.about(
            "a loader cannot travel to another machine",
            place="headrace.DataLoader, backend='ray'",
            found=f"{_unpicklable(worker_spec)}: {error}",
            expected="parts that can be pickled",
            fix="make locks, connections and open files where they are first used, and not before the workers start",
        ) from error


def _unpicklable(worker_spec: WorkerSpec) -> str:
    """Returns the name of the first part that cannot be pickled."""
    for part in fields(worker_spec):
        try:
            pack_travelling(getattr(worker_spec, part.name))
        except (TypeError, AttributeError, pickle.PicklingError):
            return part.name
    return "its parts together"
