"""How long a worker takes for each part of a batch, and how much of it a core was busy with it."""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from pathlib import Path
from typing import NamedTuple

from headrace.core.mark import COLLATED_FROM, LOAD_CPU, Mark, cpu_time

LONG = 1e-3
"""Seconds of a batch that make it worth asking the kernel for CPU times, and how long the worker waited for a core."""


class Times(NamedTuple):
    """When a worker did what for a batch, and what CPU time it took; see `recording.BATCH`."""

    begun: float
    loaded: float
    collated: float
    sent: float
    load_cpu: float
    cpu: float
    queued: float


NO_TIMES = Times(*[math.nan] * 7)
"""Of what was not timed."""


class Stopwatch:
    """One worker's. It is started, told when the batch is made, and stopped when it is on its way.

    `alone`: the calling thread is a process of its own, so that the kernel tells how long it waited for a core.
    """

    def __init__(self, mark: Mark, *, alone: bool = False) -> None:
        self._mark = mark
        self._delays = _Delays() if alone else None
        self._began = self._made = 0.0
        self._cpu = self._made_cpu = 0
        self._queued = math.nan
        self._is_long = True

    def start(self) -> None:
        """The worker begins with a batch."""
        self._mark[COLLATED_FROM] = 0
        if self._delays is not None:
            self._queued = self._delays.read() if self._is_long else math.nan
        if self._is_long or self._delays is not None:
            self._cpu = cpu_time()
        self._began = time.perf_counter()

    def made(self) -> None:
        """The batch is there."""
        self._made = time.perf_counter()

    def made_here(self) -> tuple[float, float, float, float, float]:
        """The batch is there, where it is wanted. Returns `begun`, `loaded`, `collated`, `load_cpu` and `cpu`.

        The CPU times of short batches are NaN: to ask for them would take longer than they are worth.
        """
        began, mark, was_long = self._began, self._mark, self._is_long
        now = time.perf_counter()
        self._is_long = now - began > LONG
        loaded = mark[COLLATED_FROM] * 1e-9 or now
        if not was_long:
            return began, loaded, now, math.nan, math.nan
        cpu = cpu_time()
        load_cpu = (mark[LOAD_CPU] if mark[COLLATED_FROM] else cpu) - self._cpu
        return began, loaded, now, load_cpu * 1e-9, (cpu - self._cpu) * 1e-9

    def stop(self) -> Times:
        """Returns the times of the batch, which is on its way now."""
        cpu, began, mark = cpu_time(), self._began, self._mark
        if mark[COLLATED_FROM]:
            loaded, load_cpu = mark[COLLATED_FROM] * 1e-9, mark[LOAD_CPU] - self._cpu
        else:
            loaded, load_cpu = self._made, cpu - self._cpu
        now, queued = time.perf_counter(), self._queued
        self._is_long = now - began > LONG
        if self._delays is not None and queued == queued:
            queued = self._delays.read() - queued
        return Times(began, loaded, self._made, now, load_cpu * 1e-9, (cpu - self._cpu) * 1e-9, queued)


def queued_seconds() -> float:
    """Returns how long the calling thread was ready to run and had no core, so far; 0 where nobody counts."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


class _Delays:
    """How long the calling thread was ready to run and had no core, of the kernel's own account; NaN elsewhere."""

    def __init__(self) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._fd)

    def read(self) -> float:
        """Returns the seconds up to now."""
        if self._fd is None:
            return math.nan
        words = os.pread(self._fd, 64, 0).split()
        return int(words[1]) * 1e-9 if len(words) > 1 else math.nan
