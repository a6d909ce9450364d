"""Recordings in Chrome's trace format, which Perfetto shows; on the clock of torch's profiler, alone or merged with it.

Each recording is a process of the trace: a thread for the training loop, one for the epochs, one for copies to
a device, and one for each worker.
Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import UsageError
from headrace.core.files.atomic_file import write_atomically
from headrace.telemetry.recording import MAIN, Batches, Event, Recording, without_nan, workers_seen

PROCESS = 1_000_000_000
"""The number of the first recording among the processes of the trace: no process of Linux has it."""
LOOP, EPOCHS, COPIES, FIRST_WORKER = 1, 2, 3, 10
"""Threads of a recording."""
CATEGORY = "headrace"
QUARTER = 7_889_238 * 10**9
"""Nanoseconds of a quarter of a year: torch's profiler counts from the beginning of the one that it runs in."""
ATTACHED = 1000
"""Nanoseconds before the end of a slice where an arrow holds on to it, at most."""
STEPS = (("load", "begun", "loaded"), ("collate", "loaded", "collated"), ("send", "collated", "sent"))
"""The work on a batch: name, and the moments of its beginning and its end."""
GZIPPED = b"\x1f\x8b"
"""The first bytes of every gzip file."""

Slice = dict[str, Any]


def trace_events(recordings: Sequence[Recording], *, base: int | None = None) -> dict[str, Any]:
    """Returns a trace as JSON knows it, its events in the order of time; what was not measured is left out.

    base: nanoseconds since 1970 from which its times are counted; None: as torch's profiler of this torch does.

    The recordings are those of this machine since it was started, and its clock was not set in between.
    """
    shift = _nanoseconds_since_1970()
    if base is None:
        base = time.time_ns() // QUARTER * QUARTER

    events: list[dict[str, Any]] = []
    labels: list[str] = []
    for process, recording in enumerate(recordings, PROCESS):
        events += _Drawing(recording, process, shift - base).events()
        labels.append(recording.label)

    _number_arrows(events)
    return {
        "traceEvents": sorted(events, key=_order),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "metadata": {"loaders": labels, "clock": "CLOCK_REALTIME"},
    }


def _number_arrows(events: Iterable[dict[str, Any]]) -> None:
    """Numbers the arrows through: the viewers pair their ends by number over the whole trace, not within a process."""
    numbers: dict[tuple[int, int], int] = {}
    for event in events:
        if event["ph"] in "sf":
            event["id"] = numbers.setdefault((event["pid"], event["id"]), len(numbers) + 1)


def write_trace(path: Path, recordings: Sequence[Recording], beside: Path | None = None) -> None:
    """Writes a trace that Chrome and Perfetto show: aside, then renamed.

    Args:
        path: of the file; gzipped where it ends in ".gz".
        recordings: of the loaders, as `loader.recording` has them.
        beside: a trace that `torch.profiler.profile.export_chrome_trace` wrote in this process; its events go along.

    Raises:
        UsageError: `beside` is no such trace.
        OSError: a file cannot be read or written.

    Examples:
        >>> from pathlib import Path
        >>> loader = headrace.DataLoader(list(range(6)), batch_size=2)
        >>> batches = list(loader)
        >>> headrace.write_trace(Path("trace.json.gz"), [loader.recording])
    """
    if beside is None:
        trace = trace_events(recordings)
    else:
        given = _read(beside)
        ours = trace_events(recordings, base=int(given.get("baseTimeNanoseconds", 0)))
        trace = ours | given | {"metadata": ours["metadata"] | given.get("metadata", {})}
        trace["traceEvents"] = sorted(given["traceEvents"] + ours["traceEvents"], key=_order)

    content = json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, 6)
    write_atomically(path, content)


class _Drawing:
    """The events of one recording."""

    def __init__(self, recording: Recording, process: int, shift: int) -> None:
        self._recording = recording
        self._process = process
        self._shift = shift

    def events(self) -> Iterator[dict[str, Any]]:
        rows = self._recording.batches
        yield from self._names()
        yield from self._epochs()
        yield from self._training(rows)
        yield from self._copies()
        for at in range(len(rows)):
            yield from self._batch(at, rows[at])

        yield from self._counts(rows)
        for row in self._recording.memory:
            yield self._counter("memory", float(row["time"]), main=int(row["main"]), workers=int(row["workers"]))

        for event in self._recording.events:
            if math.isfinite(event.time):
                yield self._mark(event)

    def _names(self) -> Iterator[dict[str, Any]]:
        threads = {LOOP: "training loop", EPOCHS: "epochs"}
        if self._recording.copies is not None:
            threads[COPIES] = f"copies to {self._recording.copies.device}"
        for worker in workers_seen(self._recording.batches, self._recording.events):
            threads[FIRST_WORKER + worker] = self._recording.worker_name(worker)

        yield self._label("process_name", 0, name=f"{self._recording.setting.loader} {self._recording.label}")
        # Viewers sort processes by this number. Below zero, recordings come before what torch's profiler recorded.
        yield self._label("process_sort_index", 0, sort_index=self._process - 2 * PROCESS)
        for thread, name in threads.items():
            yield self._label("thread_name", thread, name=name)
            yield self._label("thread_sort_index", thread, sort_index=thread)

    def _epochs(self) -> Iterator[Slice]:
        for epoch in self._recording.epochs:
            own = self._recording.batches[self._recording.batches["epoch"] == epoch.epoch]
            asked = own["asked"][np.isfinite(own["asked"])]
            delivered = own["delivered"]
            # An epoch that goes on, or that was left in the middle, ends with what is known of it.
            if math.isfinite(epoch.ended):
                ended = epoch.ended
            else:
                ended = _highest(delivered)

            args = {"batches": epoch.batches, "workers": epoch.workers, "workers were started": epoch.fresh}
            yield from self._slice(f"epoch {epoch.epoch}", EPOCHS, epoch.began, ended, args)
            if len(asked) and len(own) and own["number"][0] == 0:
                yield from self._slice("begin epoch", LOOP, epoch.began, float(asked[0]), {"epoch": epoch.epoch})

    def _training(self, rows: Batches) -> Iterator[Slice]:
        for before, row in itertools.pairwise(rows):
            if before["epoch"] == row["epoch"]:
                args = {"epoch": int(before["epoch"]), "batch": int(before["number"])}
                yield from self._slice("train", LOOP, float(before["delivered"]), float(row["asked"]), args)

    def _copies(self) -> Iterator[Slice]:
        """The copies to a device, on their stream: when the device did them."""
        if self._recording.copies is None:
            return
        for begin, end, nbytes in self._recording.copies.recent:
            yield from self._slice("copy", COPIES, begin, end, {"bytes": nbytes})

    def _batch(self, at: int, row: np.void) -> Iterator[dict[str, Any]]:
        """The work on a batch, the wait for it, and the arrow between them."""
        worker = int(row["worker"])
        asked = float(row["asked"])
        delivered = float(row["delivered"])
        args = {"epoch": int(row["epoch"]), "batch": int(row["number"])}
        args |= {"samples": int(row["samples"]), "bytes": int(row["bytes"])}
        if worker == MAIN:
            made = LOOP
        else:
            made = FIRST_WORKER + worker

        cpu = {"load": {"cpu_seconds": float(row["load_cpu"])}, "send": {"cpu_seconds_of_all": float(row["cpu"])}}
        work: list[Slice] = []
        for name, first, last in STEPS:
            work += self._slice(name, made, float(row[first]), float(row[last]), args | cpu.get(name, {}))

        wait = list(self._slice("wait", LOOP, asked, delivered, args))
        yield from (*wait, *work)
        if not wait:
            return

        # Durations of these two are measured, and not when they began. They are the last that happens before delivery,
        # pinning after opening, so their beginnings are counted back from it.
        pinning = max(delivered - _known(row["pinned"]), asked)
        opening = max(pinning - _known(row["opened"]), asked)
        for name, begin, end in (("open", opening, pinning), ("pin", pinning, delivered)):
            if end > begin:
                yield from self._slice(name, LOOP, begin, end, args)

        if worker != MAIN and work and math.isfinite(row["sent"]):
            yield self._arrow("s", at, work[-1])
            yield self._arrow("f", at, wait[0])

    def _slice(self, name: str, thread: int, begin: float, end: float, args: dict[str, Any]) -> Iterator[Slice]:
        """Yields a slice, if it is known when it began and ended."""
        if not (math.isfinite(begin) and math.isfinite(end)) or end < begin:
            return

        known = {}
        for key, value in args.items():
            if without_nan(value) is not None:
                known[key] = value

        # Both ends are rounded to nanoseconds before they are subtracted. Rounded by itself, a duration could reach
        # into the slice behind it, and viewers would draw that one as a part of this one.
        first = self._at(begin)
        duration = (self._at(end) - first) / 1000
        yield self._event("X", name, first, thread) | {"dur": duration, "args": known}

    def _arrow(self, phase: str, at: int, held: Slice) -> dict[str, Any]:
        """Returns an end of the arrow that belongs to a row; it holds on to a slice, just before its end."""
        moment = held["ts"] + held["dur"] - min(ATTACHED / 1000, held["dur"] / 2)
        event = {"ph": phase, "cat": CATEGORY, "name": "batch", "pid": held["pid"], "tid": held["tid"], "id": at}
        event["ts"] = round(moment, 3)
        # Without this an arrow ends at the slice that begins next, rather than at the one around its end.
        if phase == "f":
            event["bp"] = "e"
        return event

    def _counts(self, rows: Batches) -> Iterator[dict[str, Any]]:
        """Counts the batches that were posted and not delivered yet: those being made, and those that are ready."""
        known = rows[np.isfinite(rows["posted"]) & np.isfinite(rows["sent"]) & np.isfinite(rows["delivered"])]
        count = len(known)
        times = np.concatenate([known["posted"], known["sent"], known["delivered"]])
        # int64 [3 count, 2]: what each moment adds to the batches being made and to those that are ready.
        changes = np.zeros((3 * count, 2), np.int64)
        changes[:count, 0] = 1
        changes[count : 2 * count, 0] = -1
        changes[count : 2 * count, 1] = 1
        changes[2 * count :, 1] = -1
        order = np.argsort(times, kind="stable")
        levels = np.cumsum(changes[order], axis=0)
        for at, (making, ready) in zip(times[order].tolist(), levels.tolist(), strict=True):
            yield self._counter("batches in flight", at, **{"being made": making, "ready": ready})

    def _counter(self, name: str, when: float, **values: int) -> dict[str, Any]:
        return self._event("C", name, self._at(when), 0) | {"args": values}

    def _mark(self, event: Event) -> dict[str, Any]:
        # The scope says how far the mark reaches: over the whole process, or over one thread.
        if event.worker is None:
            thread = LOOP
            scope = "p"
        else:
            thread = FIRST_WORKER + event.worker
            scope = "t"

        return self._event("i", event.kind, self._at(event.time), thread) | {"s": scope, "args": {"text": event.text}}

    def _label(self, kind: str, thread: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": self._process, "tid": thread, "args": args}

    def _event(self, phase: str, name: str, moment: int, thread: int) -> dict[str, Any]:
        event = {"ph": phase, "cat": CATEGORY, "name": name, "pid": self._process, "tid": thread}
        return event | {"ts": moment / 1000}

    def _at(self, seconds: float) -> int:
        """Returns the nanoseconds from the base of the trace to a time of `time.perf_counter()`."""
        return round(seconds * 1e9) + self._shift


def _nanoseconds_since_1970() -> int:
    """Returns what turns nanoseconds of `time.perf_counter_ns()` into such since 1970: the closest of some readings."""
    # The system may take the core away between two readings, so one pair can be off by milliseconds. The pair whose
    # readings are closest to each other is off by half of their distance at most.
    closest = (math.inf, 0)
    for _ in range(20):
        before = time.perf_counter_ns()
        now = time.time_ns()
        after = time.perf_counter_ns()
        closest = min(closest, (after - before, now - (before + after) // 2))

    return closest[1]


def _known(value: float) -> float:
    if math.isfinite(value):
        return max(float(value), 0.0)
    return 0.0


def _highest(values: npt.NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    if len(known):
        return float(known.max())
    return math.nan


def _order(event: dict[str, Any]) -> tuple[bool, float, float]:
    """Returns what sorts events by time; names come first, and of slices with one beginning the longest."""
    return event["ph"] != "M", float(event.get("ts", 0)), -float(event.get("dur", 0))


def _read(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    try:
        # Told by the first bytes rather than by the name, which a user may have changed.
        if raw[:2] == GZIPPED:
            raw = gzip.decompress(raw)

        given = json.loads(raw)
        if isinstance(given, dict) and isinstance(given.get("traceEvents"), list):
            return given
        found = "JSON of another kind"
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        found = str(error)

    expected = "a file that torch.profiler.profile().export_chrome_trace wrote"
    raise UsageError.about("this is no trace", place=path, found=found, expected=expected)
