"""What loaders do right now, at the bottom of the terminal: drawn by whoever iterates, without a thread."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType, RenderResult
from rich.text import Text

from headrace.core.process import this_process
from headrace.observe.remote_words import live_line, source_line
from headrace.observe.stats import wait_share, waited_and_looped
from headrace.observe.terminal_rows import PinnedRows
from headrace.telemetry.formatting import size as size_text
from headrace.telemetry.formatting import some
from headrace.telemetry.recording import MAIN, Batches, Recording

EVERY = 0.2
"""Seconds between two drawings, at least."""
SHARE = 0.02
"""Share of the time that drawing may take."""
WINDOW = 5.0
"""Seconds that figures are of: the last ones."""
QUIET = 15.0
"""Seconds after its latest batch when a loader, or a worker, is no longer shown in full."""
MOST_WORKERS = 8
"""Workers that are shown with a row each."""

STAGES = (("load", "begun", "loaded"), ("collate", "loaded", "collated"), ("send", "collated", "sent"))
STYLES = {"load": "blue", "collate": "cyan", "send": "magenta", "idle": "bright_black", "wait": "yellow"}
BLOCKS = {"load": "█", "collate": "▓", "send": "▒", "idle": "·", "wait": "█"}
LETTERS = {"load": "#", "collate": "=", "send": "-", "idle": ".", "wait": "#"}
HEIGHTS, HEIGHT_LETTERS = " ▁▂▃▄▅▆▇█", " .:-=+*#%"
"""What stands for shares from 0 to 1; the second where the terminal knows ASCII only."""

Floats = npt.NDArray[np.float64]


class LiveView:
    """Shows what loaders do, if a console is a terminal; otherwise nothing is drawn at all.

    It belongs to the process that made it: in one that was forked from it, `update` and `close` do nothing.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._process = this_process.current
        if _is_able(console):
            self._rows: PinnedRows | None = PinnedRows(console.file)
        else:
            self._rows = None

        self._due = -math.inf
        self._busy = threading.Lock()

    def update(self, recordings: Callable[[], Sequence[Recording]]) -> None:
        """Draws anew, if it is time; called after deliveries."""
        # A forked worker has a copy of this view and of its lock. Two processes that draw would paint over each other.
        now = time.perf_counter()
        if now < self._due or self._rows is None or self._process is not this_process.current:
            return

        # Several loaders may be iterated by several threads. Who finds the view busy goes on with its batch: the other
        # thread draws all loaders anyway.
        if self._busy.acquire(blocking=False):
            try:
                self._draw(self._rows, recordings(), now)
            except OSError:
                # The terminal has gone, for example with its ssh connection. The script goes on.
                self._rows = None
            finally:
                took = time.perf_counter() - now
                self._due = now + took + max(EVERY, took / SHARE)
                self._busy.release()

    def close(self) -> None:
        """Takes away what was drawn."""
        if self._rows is not None and self._process is this_process.current:
            # Forgotten first: a batch that is delivered meanwhile by another thread shall not draw them again.
            rows = self._rows
            self._rows = None
            # The terminal may have gone, and the view with it.
            with contextlib.suppress(OSError):
                rows.remove()

    def _draw(self, rows: PinnedRows, recordings: Sequence[Recording], now: float) -> None:
        size = rows.size()
        with self._console.capture() as captured:
            self._console.print(view(recordings, now), width=size.columns, end="")

        lines = captured.get().splitlines()[: size.lines // 2]
        if lines:
            rows.show(lines, size)


def _is_able(console: Console) -> bool:
    """Returns whether a console is a terminal that knows how to move its cursor."""
    knows = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return console.is_terminal and not console.is_dumb_terminal and knows and console.file.isatty()


def view(recordings: Sequence[Recording], now: float) -> RenderableType:
    """Returns what a `rich` console shows of loaders at a time of `time.perf_counter()`: rows as wide as it is.

    A loader that has delivered nothing lately takes one row; one that never did takes none.
    """
    begun = [recording for recording in recordings if len(recording.batches)]
    return _View(begun, now)


@dataclass(frozen=True)
class _View:
    recordings: Sequence[Recording]
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # An ellipsis is no ASCII.
        overflow: OverflowMethod = "ellipsis"
        if options.ascii_only:
            overflow = "crop"

        for recording in self.recordings:
            for line in _Loader(recording, self.now, options.max_width, options.ascii_only).lines():
                # A line that wraps would take two rows, and the count of pinned rows would be wrong.
                line.no_wrap = True
                line.truncate(options.max_width, overflow=overflow)
                yield line


@dataclass(frozen=True)
class _Loader:
    """The rows of one loader."""

    recording: Recording
    now: float
    width: int
    is_ascii: bool

    def lines(self) -> Iterator[Text]:
        rows = self.recording.batches
        yield self._heading()
        if _latest(rows["delivered"]) <= self.now - QUIET:
            return

        yield self._speed()
        yield from self._workers()
        yield from self._rest()

    def _heading(self) -> Text:
        """The label, the epoch and how far it is; behind it a rule where there is room."""
        row = self.recording.batches[-1]
        length = self.recording.setting.length
        done = int(row["number"]) + 1
        text = f"epoch {row['epoch']}, batch {done:,}"
        short_text = ""
        share = 0.0
        if length:
            share = done / length
            text = f"{text} of {length:,} ({share:.0%})"
            short_text = f"{share:.0%}"

        # Measured in cells of the terminal: a letter of a label may be two cells wide.
        room = self.width - cell_len(self.recording.label) - len(text) - 2
        if room < 0:
            text = short_text
            room = 1

        full = round(room * min(share, 1.0))
        if self.is_ascii:
            rule = "=" * full + "-" * (room - full)
        else:
            rule = "━" * full + "─" * (room - full)

        line = Text(f"{self.recording.label} ", style="bold")
        line.append(rule[:full], style="green")
        line.append(rule[full:], style="bright_black")
        return line.append(f" {text}")

    def _speed(self) -> Text:
        """Samples a second with how they went, and the share of waiting."""
        speed = f"{samples_per_second(self.recording, self.now):,.0f} samples/s "
        waiting = wait_share_now(self.recording, self.now)
        share = f" waiting {waiting:.0%}"
        room = self.width - len(speed) - len(share) - 12
        line = Text(speed, style="bold")
        if room >= 8:
            seconds = min(room, 40)
            line.append(self._heights(_speeds(self.recording.batches, self.now, seconds)))

        style = ""
        if waiting >= 0.1:
            style = "bold yellow"

        line.append(share, style=style)
        if room >= 0:
            line.append(" ").append_text(self._bar([("wait", waiting)], 10))
        return line

    def _workers(self) -> Iterator[Text]:
        """A bar for each worker; many of them share a row."""
        shares = busy_shares(self.recording, self.now)
        if len(shares) > MOST_WORKERS:
            busy = np.array([sum(stages.values()) for stages in shares.values()])
            words = f"{len(busy)} workers busy {busy.min():.0%} to {busy.max():.0%} "
            yield Text(words).append(self._heights(busy, most=1.0), style=STYLES["load"])
            return

        for worker, stages in shares.items():
            yield self._worker(worker, stages)

    def _worker(self, worker: int, stages: dict[str, float]) -> Text:
        """The name of a worker, a bar of its stages, and their shares as figures where there is room."""
        if worker == MAIN:
            name = "main process "
        else:
            name = f"worker {worker:<2} {self._host(worker)}"

        words = f" {sum(stages.values()):>4.0%}"
        room = self.width - len(name) - 5
        if self.width >= 64:
            # Below half a percent the figure would be "0%".
            figures = [f"{stage} {share:.0%}" for stage, share in stages.items() if share >= 0.005]
            words += "  " + ", ".join(figures)
            room = self.width - len(name) - 40

        line = Text(name)
        if room >= 4:
            line.append_text(self._bar(list(stages.items()), min(room, 40)))
        return line.append(words)

    def _host(self, worker: int) -> str:
        """The machine of a worker where there is room for its name, as wide as that of any other."""
        hosts = self.recording.hosts
        widest = max(map(len, hosts.values()), default=0)
        if not widest or self.width < 80 + widest:
            return ""
        return f"{hosts.get(worker, 'here'):<{widest}} "

    def _rest(self) -> Iterator[Text]:
        """Batches on their way, memory, and what was decided last."""
        parts = []
        flying, ready = in_flight(self.recording.batches)
        if not math.isnan(flying):
            parts.append(f"{flying:.1f} batches in flight, {ready:.1f} ready")

        if len(self.recording.memory):
            latest = self.recording.memory[-1]
            memory = f"memory {size_text(latest['main'])}"
            if latest["workers"]:
                memory = f"{memory}, workers {size_text(latest['workers'])}"
            parts.append(memory)

        if self.recording.bad_samples or self.recording.restarts:
            bad = some(self.recording.bad_samples, "bad sample")
            parts.append(f"{bad}, {some(self.recording.restarts, 'worker')} replaced")

        waited, looped = waited_and_looped(self.recording)
        if self.recording.totals:
            parts.append(f"waited {wait_share(waited, looped):.0%} so far")
        if parts:
            yield Text("; ".join(parts))
        if self.recording.remote is not None:
            yield Text(live_line(self.recording.remote, self.now))
        if self.recording.live is not None:
            yield Text(source_line(self.recording.live))

        for event in reversed(self.recording.events):
            if event.kind == "decided":
                # One row is one line: a decision may have been worded over several.
                yield Text(f"decided: {' '.join(event.text.split())}", style="green")
                return

    def _bar(self, parts: Sequence[tuple[str, float]], width: int) -> Text:
        """Returns shares of a whole as a bar of so many cells."""
        if self.is_ascii:
            signs = LETTERS
        else:
            signs = BLOCKS

        # The end of each piece is rounded, and not its length: rounded lengths could add up to more than the bar.
        line = Text()
        done = 0.0
        cells = 0
        for stage, share in parts:
            done = min(done + share, 1.0)
            end = round(done * width)
            line.append(signs[stage] * (end - cells), style=STYLES[stage])
            cells = end

        return line.append(signs["idle"] * (width - cells), style=STYLES["idle"])

    def _heights(self, values: Floats, most: float = 0.0) -> str:
        """Returns a sign for each value, as high as it is beside the highest; blank where it is not known."""
        if self.is_ascii:
            signs = HEIGHT_LETTERS
        else:
            signs = HEIGHTS

        known = np.nan_to_num(values, nan=0.0)
        top = most or float(known.max(initial=0.0)) or 1.0
        # Rounded up: only nothing at all is shown as a blank.
        heights = np.ceil(np.minimum(known / top, 1.0) * (len(signs) - 1)).astype(int)
        return "".join(map(signs.__getitem__, heights.tolist()))


def samples_per_second(recording: Recording, now: float, window: float = WINDOW) -> float:
    """Returns the samples delivered in the last seconds, a second; of less than these where it began later."""
    rows = recording.batches[recording.batches["delivered"] > now - window]
    spent = now - max(now - window, _since(recording))
    if spent > 0:
        return float(rows["samples"].sum()) / spent
    return 0.0


def wait_share_now(recording: Recording, now: float, window: float = WINDOW) -> float:
    """Returns the share of the last seconds in which the loop waited, from the beginning of an epoch on; 0 to 1."""
    begin = max(now - window, _since(recording))
    rows = recording.batches
    asked = rows["asked"].copy()
    # The loop begins to wait for an epoch's first batch when the epoch begins, which starts the workers, and not only
    # when it asks for that batch.
    began = {epoch.epoch: epoch.began for epoch in recording.epochs}
    for first in np.flatnonzero(rows["number"] == 0).tolist():
        asked[first] = began.get(int(rows["epoch"][first]), asked[first])

    if now > begin:
        return float(_overlap(asked, rows["delivered"], begin, now)) / (now - begin)
    return 0.0


def busy_shares(recording: Recording, now: float, window: float = WINDOW) -> dict[int, dict[str, float]]:
    """Returns for each worker the share of each stage in its last seconds that are known, 0 to 1.

    What a worker did is known once its batches are delivered: the seconds of each end with its latest such batch.
    """
    rows = recording.batches[~np.isnan(recording.batches["begun"])]
    found: dict[int, dict[str, float]] = {}
    for worker in np.unique(rows["worker"]).tolist():
        its_rows = rows[rows["worker"] == worker]
        latest = max(_latest(its_rows["loaded"]), _latest(its_rows["collated"]), _latest(its_rows["sent"]))
        if latest <= now - QUIET:
            continue

        # The main process makes a batch only while the loop waits for it, so what it does up to now is known.
        if worker == MAIN:
            end = now
        else:
            end = latest

        begin = max(end - window, min(float(its_rows["begun"].min()), end))
        shares = {}
        for stage, first, last in STAGES:
            shares[stage] = 0.0
            if end > begin:
                shares[stage] = _overlap(its_rows[first], its_rows[last], begin, end) / (end - begin)
        found[worker] = shares

    return found


def in_flight(batches: Batches, window: float = WINDOW) -> tuple[float, float]:
    """Returns how many batches were on their way, and how many of these were ready: means of some seconds.

    They end when the latest delivered batch was posted: of later times not all batches are known. NaN: not measured.
    """
    rows = batches[~np.isnan(batches["posted"])]
    if not len(rows) or np.isnan(rows["sent"]).all():
        return math.nan, math.nan

    end = float(rows["posted"][-1])
    begin = max(end - window, float(rows["posted"].min()))
    if end <= begin:
        return math.nan, math.nan

    flying = _overlap(rows["posted"], rows["delivered"], begin, end)
    return flying / (end - begin), _overlap(rows["sent"], rows["delivered"], begin, end) / (end - begin)


def _speeds(batches: Batches, now: float, seconds: int) -> Floats:
    """Returns the samples delivered in each of the last seconds, the latest last; NaN where that is not known."""
    rows = batches[batches["delivered"] > now - seconds]
    ages = np.floor((now - rows["delivered"]).clip(0)).astype(np.int64)
    counts = np.bincount(ages, rows["samples"], seconds)[::-1]
    return np.where(now - np.arange(seconds)[::-1] > _first(batches["delivered"]), counts, np.nan)


def _since(recording: Recording) -> float:
    """Returns when the loader was first iterated, as far as batches are known."""
    asked = _first(recording.batches["asked"])
    oldest = recording.batches[0]
    # Where the beginning of the oldest epoch is no longer held, the loop waited for batches that are not known, either.
    if oldest["number"] != 0:
        return asked

    for epoch in recording.epochs:
        if epoch.epoch == oldest["epoch"]:
            return min(epoch.began, asked)
    return asked


def _overlap(begins: Floats, ends: Floats, begin: float, end: float) -> float:
    """Returns for how long the spans lie within begin to end, all together; unknown ones do not count."""
    return float(np.nansum((np.minimum(ends, end) - np.maximum(begins, begin)).clip(0)))


def _first(values: Floats) -> float:
    if not np.isnan(values).all():
        return float(np.nanmin(values))
    return math.inf


def _latest(values: Floats) -> float:
    if not np.isnan(values).all():
        return float(np.nanmax(values))
    return -math.inf
