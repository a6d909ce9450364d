"""The progress bar of a stream that is run through again, because it cannot say where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import warn
from headrace.core.hugging_face_streams import missing_in_state

if TYPE_CHECKING:
    from rich.progress import Progress


class ReplayBar:
    """Warns at the first report, and draws on stderr while reports come, one for each of several replicas."""

    def __init__(self, dataset: object) -> None:
        self._name = type(dataset).__name__
        self._missing = missing_in_state(dataset, in_worker=True)
        self._bar: Progress | None = None
        self._said = False

        self._done: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> ReplayBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def report(self, replica: int, done: int, total: int) -> None:
        """Shows how far a replica has come."""
        if not self._said:
            self._said = True
            self._warn(total)

        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            from headrace.telemetry.terminal import Terminal

            console = Terminal(stderr=True)
            if not console.is_terminal:
                return
            columns = ("replaying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.start()
            self._bar.add_task("replay")

        self._done[replica] = done, total
        finished, everything = map(sum, zip(*self._done.values(), strict=True))
        self._bar.update(self._bar.task_ids[0], completed=finished, total=everything)
        if finished == everything:
            self._bar.stop()

    def _warn(self, total: int) -> None:
        why = ""
        advice = "Give it (or its iterator) state_dict() and load_state_dict() to resume at once."
        if self._missing:
            why = f" ({self._missing})"
            advice = "Without that step it resumes at once."
        warn(f"{self._name} cannot say where it was{why}, so {total} samples are read again and thrown away. {advice}")
