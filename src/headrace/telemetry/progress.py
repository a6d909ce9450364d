"""Progress bars, on stderr.

Rich is imported by the bars themselves: who reads data without a bar does not wait for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def samples_bar(what: str, *, after: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on stderr while the block runs; yields what is to be called with (done, in all).

    after: seconds of work before it is shown: what is done sooner shows nothing.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from headrace.telemetry.terminal import Terminal

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("samples"), TimeRemainingColumn())
    console = Terminal(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=after > 0 and not console.is_terminal)
    task = bar.add_task(what, total=None)
    began = time.perf_counter()

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started and time.perf_counter() - began >= after:
            bar.start()

    if after <= 0:
        bar.start()

    try:
        yield report
    finally:
        bar.stop()


@contextlib.contextmanager
def bytes_bar(what: str, total: int, *, after: float) -> Iterator[Callable[[int], None]]:
    """Shows a bar of bytes on stderr, on a terminal; yields what is to be called with how many more have come.

    after: seconds of work before it is shown.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from headrace.telemetry.terminal import Terminal

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Terminal(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=total)
    began = time.perf_counter()

    def report(count: int) -> None:
        bar.advance(task, count)
        if not bar.live.is_started and time.perf_counter() - began >= after:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()


@contextlib.contextmanager
def stages_bar(first: str) -> Iterator[Callable[[str, float], None]]:
    """Shows a bar for work in stages; yields what is to be called with (what is done now, the share that is done).

    It has no thread of its own, so that processes may be forked meanwhile.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from headrace.telemetry.terminal import Terminal

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(first, total=1)

        def report(what: str, share: float) -> None:
            progress.update(task, description=f"{what:<26}", completed=share)
            progress.refresh()

        yield report
