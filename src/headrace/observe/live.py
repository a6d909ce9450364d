"""What loaders do right now, at the bottom of the terminal: drawn by whoever iterates, without a thread."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from headrace.observe.stats import wait_share, waited_and_looped
from headrace.observe.terminal_rows import PinnedRows
from headrace.telemetry.formatting import size as size_text
from headrace.telemetry.formatting import some
from headrace.telemetry.recording import MAIN, Batches, EpochTimes, Recording

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
        self._process = os.getpid()
        if _is_able(console):
            self._rows: PinnedRows | None = PinnedRows(console.file)
        else:
            self._rows = None

        self._due = -math.inf
        self._busy = threading.Lock()

    def update(self, recordings: Callable[[], Sequence[Recording]]) -> None:
        """Draws anew, if it is time; called after deliveries."""
        now = time.perf_counter()
        if now < self._due or self._rows is None or os.getpid() != self._process:
            return

        if self._busy.acquire(blocking=False):
            try:
                self._draw(self._rows, recordings(), now)
            except OSError:
                self._rows = None  # the terminal has gone; the script goes on
            finally:
                took = time.perf_counter() - now
                self._due = now + took + max(EVERY, took / SHARE)
                self._busy.release()

    def close(self) -> None:
        """Takes away what was drawn."""
        if self._rows is not None and os.getpid() == self._process:
            rows = self._rows
            self._rows = None
            try:
                rows.remove()
            except OSError:
                return  # the terminal has gone, and the view with it

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
    return _View([recording for recording in recordings if len(recording.batches)], now)


@dataclass(frozen=True)
class _View:
    recordings: Sequence[Recording]
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for recording in self.recordings:
            for line in _Loader(recording, self.now, options.max_width, options.ascii_only).lines():
                line.no_wrap = True
                line.truncate(options.max_width, overflow="crop" if options.ascii_only else "ellipsis")
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
        if not _latest(rows["delivered"]) > self.now - QUIET:
            return

        yield self._speed()
        yield from self._workers()
        yield from self._rest()

    def _heading(self) -> Text:
        """The label, the epoch and how far it is; behind it a rule where there is room."""
        row = self.recording.batches[-1]
        length = self.recording.setting.length
        done = int(row["number"]) + 1
        how_far = f"batch {done:,}" + (f" of {length:,} ({done / length:.0%})" if length else "")
        text = f"epoch {row['epoch']}, {how_far}"
        room = self.width - cell_len(self.recording.label) - len(text) - 2
        if room < 0:
            if length:
                text = f"{done / length:.0%}"
            else:
                text = ""
            room = 1

        if length:
            full = round(room * min(done / length, 1.0))
        else:
            full = 0

        if self.is_ascii:
            rule = "=" * full + "-" * (room - full)
        else:
            rule = "━" * full + "─" * (room - full)

        parts = Text(f"{self.recording.label} ", style="bold")
        return parts.append(rule[:full], style="green").append(rule[full:], style="bright_black").append(f" {text}")

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

        line.append(share, style="bold yellow" if waiting >= 0.1 else "")
        if room >= 0:
            line.append(" ").append_text(self._bar([("wait", waiting)], 10))
        return line

    def _workers(self) -> Iterator[Text]:
        """A bar for each worker; many of them share a row."""
        shares = busy_shares(self.recording, self.now)
        if len(shares) > MOST_WORKERS:
            whole = np.array([sum(one.values()) for one in shares.values()])
            words = f"{len(whole)} workers busy {whole.min():.0%} to {whole.max():.0%} "
            yield Text(words).append(self._heights(whole, most=1.0), style=STYLES["load"])
            return

        for worker, stages in shares.items():
            if worker == MAIN:
                name = "main process "
            else:
                name = f"worker {worker:<2} "

            words = f" {sum(stages.values()):>4.0%}"
            if self.width >= 64:
                words += "  " + ", ".join(f"{stage} {share:.0%}" for stage, share in stages.items() if share >= 0.005)
            room = self.width - len(name) - (40 if self.width >= 64 else 5)
            line = Text(name)
            if room >= 4:
                line.append_text(self._bar(list(stages.items()), min(room, 40)))
            yield line.append(words)

    def _rest(self) -> Iterator[Text]:
        """Batches on their way, memory, and what was decided last."""
        parts = []
        flying, ready = in_flight(self.recording.batches)
        if not math.isnan(flying):
            parts.append(f"{flying:.1f} batches in flight, {ready:.1f} ready")

        if len(self.recording.memory):
            main = int(self.recording.memory["main"][-1])
            workers = int(self.recording.memory["workers"][-1])
            parts.append(f"memory {size_text(main)}" + (f", workers {size_text(workers)}" if workers else ""))

        if self.recording.bad_samples or self.recording.restarts:
            bad = some(self.recording.bad_samples, "bad sample")
            parts.append(f"{bad}, {some(self.recording.restarts, 'worker')} replaced")

        waited, looped = waited_and_looped(self.recording)
        if self.recording.totals:
            parts.append(f"waited {wait_share(waited, looped):.0%} so far")
        if parts:
            yield Text("; ".join(parts))

        decided = [event.text for event in self.recording.events if event.kind == "decided"]
        if decided:
            yield Text(f"decided: {' '.join(decided[-1].split())}", style="green")

    def _bar(self, parts: Sequence[tuple[str, float]], width: int) -> Text:
        """Returns shares of a whole as a bar of so many cells."""
        if self.is_ascii:
            signs = LETTERS
        else:
            signs = BLOCKS

        line = Text()
        done = 0.0
        cells = 0
        for stage, share in parts:
            done = min(done + share, 1.0)
            line.append(signs[stage] * (round(done * width) - cells), style=STYLES[stage])
            cells = round(done * width)

        return line.append(signs["idle"] * (width - cells), style=STYLES["idle"])

    def _heights(self, values: Floats, most: float = 0.0) -> str:
        """Returns a sign for each value, as high as it is beside the highest; blank where it is not known."""
        if self.is_ascii:
            signs = HEIGHT_LETTERS
        else:
            signs = HEIGHTS

        known = np.nan_to_num(values, nan=0.0)
        top = most or float(known.max(initial=0.0)) or 1.0
        return "".join(signs[math.ceil(min(value / top, 1.0) * (len(signs) - 1))] for value in known.tolist())


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
    began = {one.epoch: one.began for one in recording.epochs}
    for at in np.flatnonzero(rows["number"] == 0).tolist():
        asked[at] = began.get(int(rows["epoch"][at]), asked[at])

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
        own = rows[rows["worker"] == worker]
        latest = max(_latest(own[name]) for name in ("loaded", "collated", "sent"))
        if worker == MAIN:
            end = now
        else:
            end = latest

        if not latest > now - QUIET:
            continue
        begin = max(end - window, min(float(own["begun"].min()), end))
        spans = {stage: _overlap(own[a], own[b], begin, end) for stage, a, b in STAGES}
        found[worker] = {stage: span / (end - begin) if end > begin else 0.0 for stage, span in spans.items()}

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
    began: list[EpochTimes] = [one for one in recording.epochs if one.epoch == int(recording.batches["epoch"][0])]
    first = _first(recording.batches["asked"])
    if began and recording.batches["number"][0] == 0:
        return min(began[0].began, first)
    return first


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
