"""What a loader tells of itself: figures, findings, and the raw record behind them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Diagnosis
from headrace.observe.stats import LoaderStats, stats_of
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.recording import Recording

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

OnStats = Callable[[LoaderStats], None]

EVERY = 10.0
"""Seconds between two calls of `on_stats`."""

WIDTH = 80
"""Columns of a report as text."""


class Observed:
    """The part of a loader that reports where the time goes. `recorder` records the times of its batches."""

    @property
    def recorder(self) -> Recorder:
        """The loader's own."""
        raise NotImplementedError

    @property
    def stats(self) -> LoaderStats:
        """Figures of everything that this loader delivered so far, as a snapshot that does not change later."""
        return stats_of(self.recorder.recording())

    @property
    def recording(self) -> Recording:
        """A snapshot: times of the latest 4,096 batches, sums over all batches, epochs, memory and events."""
        return self.recorder.recording()

    def diagnose(self) -> Diagnosis:
        """Finds out what training waits for, what to change, and what the change would gain.

        Returns:
            A summary in words and the findings behind it.

        Examples:
            >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
            >>> batches = list(loader)
            >>> type(loader.diagnose().summary)
            <class 'str'>
        """
        return diagnose(self.recorder.recording())

    def report(self) -> Report:
        """Makes a report of the diagnosis and the figures behind it, for `print` or a `rich` console.

        Returns:
            A report of what was recorded until now.

        Examples:
            >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
            >>> batches = list(loader)
            >>> text = str(loader.report())
        """
        return Report(self.recorder.recording())


class Report:
    """A recording and its diagnosis: print it, or show it in a notebook.

    Attributes:
        recording: what was recorded.
        diagnosis: what was found out from it.

    Args:
        recording: what `loader.recording` has.

    Examples:
        >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
        >>> batches = list(loader)
        >>> report = headrace.types.Report(loader.recording)
        >>> len(report.recording.batches)
        2
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.diagnosis = diagnose(recording)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from headrace.observe.report import report  # with rich, which takes long to load

        yield report(self.recording, self.diagnosis)

    def __str__(self) -> str:
        from headrace.telemetry.terminal import plain_text

        return plain_text(lambda console: console.print(self), WIDTH)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns what a notebook shows of it."""
        from headrace.observe.page.cell import cell  # with what draws it, which scripts do without

        return cell(self.recording, self.diagnosis, str(self))


class Telling:
    """Calls `on_stats` every `EVERY` seconds, and at the end of each epoch."""

    def __init__(self, on_stats: OnStats) -> None:
        self._on_stats = on_stats
        self._due = -math.inf

    def __call__(self, recorder: Recorder, now: float) -> None:
        if self._due == -math.inf and now != math.inf:
            self._due = now + EVERY

        if now >= self._due:
            if now != math.inf:
                self._due = now + EVERY
            else:
                self._due = -math.inf
            self._on_stats(stats_of(recorder.recording()))
