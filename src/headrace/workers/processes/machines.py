"""What worker processes have to know of workers on other machines. `workers/remote` is that.

A process here stands for each of them, and to the executor it is a worker like the others.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

from headrace.workers.processes.messages import Result
from headrace.workers.worker_spec import WorkerSpec

News = Literal["placed", "waiting", "refused", "lost"]
"""What such a process tells of itself: a host works for it; it has waited for long; there is no host for it; the
connection to its host is lost."""

NEWS = ("placed", "waiting", "refused", "lost")


class MachineNews(NamedTuple):
    """What it tells. `text` is the host's name if it is placed, otherwise the reason."""

    kind: News
    text: str
    pid: int | None = None
    """Of the worker on the other machine."""


class StandIn(Protocol):
    """What runs in a worker process instead of a worker. Picklable while a process is being started."""

    def run(self, assignment: Any) -> None:
        """Does what the worker's `Assignment` says, by a worker elsewhere."""


class Machines(Protocol):
    """Finds other machines for the workers of one executor."""

    lost: dict[int, str]
    """Workers whose connections to their machines were lost, and how."""
    refused: dict[int, str]
    """Workers for which there is no machine, and why."""

    def prepare(self, worker_spec: WorkerSpec) -> None:
        """Packs what all workers are told. Raises `UsageError` if it cannot be pickled."""

    def stand_in(self, worker_id: int) -> StandIn | None:
        """Returns what runs in the place of a worker; None: it works on this machine. Raises `ClusterError`."""

    def note(self, worker_id: int, result: Result) -> MachineNews:
        """Reads a result whose status is one of `NEWS`."""
