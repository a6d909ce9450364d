"""How long a worker takes for each part of a batch, and how much of it a core was busy with it."""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.process.activity import COLLATED_FROM, LOAD_CPU, Activity, cpu_time

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
    slowest: float = math.nan
    others: float = math.nan

    @property
    def making(self) -> float:
        """How many seconds the worker took to make the batch; NaN: it was not timed."""
        return self.collated - self.begun


NO_TIMES = Times(*[math.nan] * len(Times._fields))
"""Of what was not timed."""


def joined_times(parts: Sequence[Times]) -> Times:
    """Returns the times of a batch of which several workers made parts, in the order of their arrival.

    The moments are those of the last part. What cores were busy with is summed up over all of them.
    """
    last = parts[-1]
    known = [one.slowest for one in parts if not math.isnan(one.slowest)]
    return last._replace(
        load_cpu=sum(one.load_cpu for one in parts),
        cpu=sum(one.cpu for one in parts),
        queued=sum(one.queued for one in parts),
        slowest=max(known, default=math.nan),
        others=sum(one.sent - one.begun for one in parts[:-1]),
    )


TimesHere = tuple[float, float, float, float, float, float]
"""`begun`, `loaded`, `collated`, `load_cpu`, `cpu` and `queued` of a batch that was made where it is wanted."""


class Stopwatch:
    """One worker's, used in its thread. It is started, told when the batch is made, and stopped when that is sent.

    `here`: batches are made where they are wanted, so that `made_here` is called instead. Then short ones are not asked
    for their CPU times, which would take longer than they are worth.
    """

    def __init__(self, activity: Activity, *, here: bool = False) -> None:
        self._activity = activity
        self._here = here
        self._delays: _Delays | None = None
        self._began = self._made = 0.0
        self._cpu = 0
        self._queued = math.nan
        self.is_long = True
        """Whether the last batch was long, so that the next one is looked at more closely."""

    def start(self) -> None:
        """The worker begins with a batch."""
        self._activity[COLLATED_FROM] = 0
        self._queued = math.nan
        if self.is_long:
            # Made here, by the thread that works: the kernel counts for the thread that opens the file, and a stopwatch
            # may have been made by another one.
            if self._delays is None:
                self._delays = _Delays()
            self._queued = self._delays.read()

        if self.is_long or not self._here:
            self._cpu = cpu_time()

        self._began = time.perf_counter()

    def made(self) -> None:
        """The batch is there."""
        self._made = time.perf_counter()

    def made_here(self) -> TimesHere:
        """The batch is there, where it is wanted. Returns its times; what a core was busy with it may be NaN."""
        began = self._began
        activity = self._activity
        was_long = self.is_long
        now = time.perf_counter()
        self.is_long = now - began > LONG
        loaded = activity[COLLATED_FROM] * 1e-9 or now
        if not was_long:
            return began, loaded, now, math.nan, math.nan, math.nan

        # A batch that the dataset made whole was never collated: all of its time is loading.
        cpu = cpu_time()
        load_cpu = cpu - self._cpu
        if activity[COLLATED_FROM]:
            load_cpu = activity[LOAD_CPU] - self._cpu
        return began, loaded, now, load_cpu * 1e-9, (cpu - self._cpu) * 1e-9, self._queued_since_start()

    def stop(self) -> Times:
        """Returns the times of the batch, which is on its way now."""
        cpu = cpu_time()
        began = self._began
        activity = self._activity
        if activity[COLLATED_FROM]:
            loaded = activity[COLLATED_FROM] * 1e-9
            load_cpu = activity[LOAD_CPU] - self._cpu
        else:
            loaded = self._made
            load_cpu = cpu - self._cpu

        now = time.perf_counter()
        self.is_long = now - began > LONG
        queued = self._queued_since_start()
        return Times(began, loaded, self._made, now, load_cpu * 1e-9, (cpu - self._cpu) * 1e-9, queued)

    def _queued_since_start(self) -> float:
        if self._delays is None or math.isnan(self._queued):
            return math.nan
        return self._delays.read() - self._queued


ACCOUNT = "/proc/thread-self/schedstat"
"""Where Linux counts for a thread, in nanoseconds: running, ready to run without a core."""


def queued_seconds() -> float:
    """Returns how long the calling thread was ready to run and had no core, so far; 0 where nobody counts."""
    try:
        with _Account(ACCOUNT) as account:
            return _queued_in(account.read())
    except OSError:
        return 0.0


class _Account(io.FileIO):
    """The file, which closes itself without a warning: an interrupt may come before `with` has it."""

    def __del__(self) -> None:
        self.close()


class _Delays:
    """The same of the thread that makes it, kept open to be read often; NaN where nobody counts."""

    def __init__(self) -> None:
        self._account: _Account | None = None
        with contextlib.suppress(OSError):
            self._account = _Account(ACCOUNT)

    def read(self) -> float:
        """Returns the seconds up to now."""
        if self._account is None:
            return math.nan
        return _queued_in(os.pread(self._account.fileno(), 64, 0))


def _queued_in(account: bytes) -> float:
    words = account.split()
    if len(words) > 1:
        return int(words[1]) * 1e-9
    return 0.0
