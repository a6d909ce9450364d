"""What lies between a dispatcher and its workers: what carries tasks to them, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Answer(Protocol):
    """What a worker answers to a task."""

    @property
    def status(self) -> str:
        """What it is: "batch", or what came in its place."""


class PartAnswer(Answer, Protocol):
    """What a worker answers that may make a part of a batch only."""

    @property
    def nbytes(self) -> int:
        """Bytes of what it made."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def rows(self) -> int:
        """How many samples it made, if others make the rest; -1: all."""

    @property
    def slow(self) -> Sequence[tuple[int, float]]:
        """Places of the samples that took much longer than the others, and their seconds."""


class Carrier(Protocol):
    """What brings tasks to workers and results back: the executor that holds a dispatcher."""

    def submit(self, worker: int, task: int, replica: int, index: Any) -> None:
        """Gives a task to a worker; it may wait until `flush`."""

    def withdraw(self, worker: int, task: int) -> bool:
        """Takes a submitted task back. False: it was sent already."""

    def flush(self, least: int = 1) -> None:
        """Sends what was submitted to workers for which there are at least so many tasks by now."""

    def collect(self) -> None:
        """Waits until at least one result has come, and files it with `Dispatcher.file` or `file_end`.

        It also returns when `Dispatcher.look` says that another result may be delivered.
        """

    def close(self) -> None:
        """Ends the workers."""


class Watched(Protocol):
    """Workers that can be seen at work, and told that others do a part of it."""

    def doing(self, worker: int) -> tuple[int, int, int]:
        """Returns what a worker does at this moment: number of the task, stage, and place of the sample."""

    def stop_at(self, worker: int, task: int, row: int) -> None:
        """Tells a worker that it need not make this sample of a task, nor those behind it."""

    def recall(self, worker: int, task: int) -> None:
        """Tells a worker to leave a task alone, unless it has begun it."""
