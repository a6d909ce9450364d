"""The progress bar of commands that go through many samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def samples_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on stderr while the block runs; yields what is to be called with (done, in all)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("samples"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
