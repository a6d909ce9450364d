"""What executors of threads and of processes do alike with answers, and with workers that give none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.batches.index import Careful, plain_index, split
from headrace.core.process import this_process
from headrace.epoch.epoch import Epoch
from headrace.telemetry.replay_bar import ReplayBar
from headrace.workers.carrier import Carrier
from headrace.workers.tasks import Tasks

REPORTS = ("replay", "begun")
"""What workers tell beside answers to tasks: how far a stream was run through again, and how replicas begin."""


class OwningProcess:
    """The process whose workers an executor has. A forked child gets a copy of the executor, and no workers."""

    def __init__(self) -> None:
        self._process = this_process.current

    @property
    def is_here(self) -> bool:
        """Whether it is the running process."""
        return self._process is this_process.current

    def check(self) -> None:
        """Raises RuntimeError in a forked child: what it took from the workers, its parent would miss."""
        if not self.is_here:
            raise RuntimeError(
                "this iterator is of the process that forked this one, and so are its workers; make a new one with "
                "iter(loader)"
            )


class Reports:
    """What the workers of an epoch tell that is no answer to a task."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._bar = ReplayBar(epoch.spec.dataset)

    def hear(self, status: str, content: Any) -> None:
        """Deals with what came. status: one of `REPORTS`."""
        if status == "replay":
            self._bar.report(*content)
        else:
            self._epoch.note_beginnings(content)

    def await_beginnings(self, timeout: float, receive: Callable[[float | None], bool]) -> None:
        """Waits until all replicas have told how they begin, or until it is certain that one will not.

        What goes wrong is raised where batches are asked for.

        timeout: seconds; 0: for ever. receive: takes in what comes until a deadline. False: nothing more will come.
        """
        deadline = deadline_after(timeout)
        while self._epoch.untold and receive(deadline):
            if deadline is not None and time.monotonic() >= deadline:
                return


def keys_of(epoch: Epoch, tasks: Sequence[tuple[int, int, Any]]) -> dict[int, Sequence[Any]] | None:
    """Returns the keys of each task; None: those of a stream have none."""
    if not epoch.is_map:
        return None
    return {task: split(plain_index(index), batched=epoch.spec.batched)[0] for task, _, index in tasks}


def give_again(tasks: Tasks[Any], worker: int, careful: int | None, carrier: Carrier) -> None:
    """Gives a worker again what it has not answered. careful: the task whose samples are each to be tried alone."""
    for task, replica, index in tasks.of_worker(worker):
        again = index
        if task == careful:
            again = Careful(plain_index(index))
        tasks.give(task, replica, again, carrier)


def deadline_after(timeout: float) -> float | None:
    """Returns when so many seconds will have passed, by `time.monotonic`; None: 0 seconds mean for ever."""
    if timeout > 0:
        return time.monotonic() + timeout
    return None


def seconds_left(deadline: float | None) -> float | None:
    """Returns the seconds until a time of `time.monotonic`, 0 behind it; None: there is no such time."""
    if deadline is None:
        return None
    return max(deadline - time.monotonic(), 0.0)


def shortest(*waits: float | None) -> float | None:
    """Returns the shortest of some waits in seconds; None: each of them is for ever."""
    return min((one for one in waits if one is not None), default=None)


def timed_out(timeout: float, stacks: str) -> RuntimeError:
    """Returns torch's error for a loader's `timeout`. stacks: what the workers do meanwhile; empty: nobody knows."""
    error = RuntimeError(f"DataLoader timed out after {timeout} seconds")
    if stacks:
        error.__cause__ = RuntimeError(f"the Python stacks of the workers that it waits for are:\n{stacks}")
    return error
