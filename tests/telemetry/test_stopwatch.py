"""The times of a batch follow each other, and say what was worked and what was waited for."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.core.process import activity as mark_module
from headrace.core.process.activity import (
    COLLATE,
    COLLATED_FROM,
    STAGE,
    Activity,
    cpu_time,
    note_collation,
    private_activity,
)
from headrace.telemetry import stopwatch
from headrace.telemetry.stopwatch import LONG, NO_TIMES, Stopwatch, Times, joined_times, queued_seconds

LINUX = pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="reads /proc")


def spin(seconds: float) -> None:
    """Keeps a core busy for so many seconds of it."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def timed(activity: Activity, load: Callable[[], Any], collate: Callable[[], Any] | None = None, **how: Any) -> Times:
    """The times of a batch that is loaded and, if there is something to it, collated."""
    watch = Stopwatch(activity, **how)
    watch.start()
    load()
    if collate is not None:
        note_collation(activity)
        collate()
    watch.made()
    return watch.stop()


def test_moments_follow_each_other_and_cores_are_counted() -> None:
    before = time.perf_counter()
    times = timed(private_activity(), lambda: spin(0.02), lambda: spin(0.01))
    after = time.perf_counter()
    assert before <= times.begun <= times.loaded <= times.collated <= times.sent <= after
    assert 0.02 <= times.load_cpu <= times.loaded - times.begun + 1e-4
    assert times.load_cpu + 0.01 <= times.cpu <= after - before
    assert times.loaded - times.begun >= 0.02
    assert times.collated - times.loaded >= 0.01
    assert 0 <= times.queued <= after - before or sys.platform != "linux"


def test_waiting_takes_no_core() -> None:
    times = timed(private_activity(), lambda: time.sleep(0.05), lambda: None)
    assert times.loaded - times.begun >= 0.05
    assert times.cpu < 0.025


def test_what_is_not_collated_is_loaded_to_its_end() -> None:
    activity = private_activity()
    timed(activity, lambda: None, lambda: None)
    assert activity[COLLATED_FROM] > 0
    times = timed(activity, lambda: spin(0.01))  # the mark of the batch before must not count
    assert times.loaded == times.collated
    assert times.load_cpu == times.cpu
    assert activity[COLLATED_FROM] == 0


def test_the_mark_says_that_a_batch_is_collated() -> None:
    activity = private_activity()
    before = time.perf_counter_ns()
    note_collation(activity)
    assert activity[STAGE] == COLLATE
    assert before <= activity[COLLATED_FROM] <= time.perf_counter_ns()


def test_a_thread_counts_its_own_cores_and_a_process_all_of_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_module, "_cpu_clock", time.thread_time_ns)

    def in_another_thread() -> None:
        thread = threading.Thread(target=spin, args=(0.03,))
        thread.start()
        thread.join()

    assert timed(private_activity(), in_another_thread).cpu < 0.015
    mark_module.count_whole_process()
    assert timed(private_activity(), in_another_thread).cpu >= 0.03
    assert abs(cpu_time() - time.process_time_ns()) < 1e9


@LINUX
def test_who_shares_a_core_is_seen_to_wait_for_it() -> None:
    """Two processes on one core that both spin: each waits while the other runs."""
    cores = os.sched_getaffinity(0)
    found: list[Times] = []
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as beside:
        try:
            os.sched_setaffinity(beside.pid, {min(cores)})
            os.sched_setaffinity(0, {min(cores)})
            watch = Stopwatch(private_activity())
            for _ in range(2):
                watch.start()
                spin(0.06)
                watch.made()
                found.append(watch.stop())
        finally:
            os.sched_setaffinity(0, cores)
            beside.kill()
    for times in found:
        spent = times.sent - times.begun
        assert 0.005 < times.queued
        # A machine that is itself a guest may be given to others meanwhile, which is neither.
        assert times.cpu + times.queued < spent * 1.3


@LINUX
def test_short_batches_do_not_ask_the_kernel() -> None:
    watch = Stopwatch(private_activity())

    def batch(seconds: float) -> Times:
        watch.start()
        spin(seconds)
        watch.made()
        return watch.stop()

    first, second = batch(0.0), batch(2 * LONG)
    third = batch(0.0)
    assert not math.isnan(first.queued)  # it is not known yet how long batches are
    if first.sent - first.begun < LONG:
        assert math.isnan(second.queued)
    assert not math.isnan(third.queued)


@LINUX
def test_the_kernels_account_is_closed_with_the_watch() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as many as there are
    watch = Stopwatch(private_activity())
    watch.start()
    assert len(os.listdir("/proc/self/fd")) == before + 1  # noqa: PTH208
    del watch
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_where_nobody_counts_waiting_for_a_core_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stopwatch, "ACCOUNT", str(tmp_path / "none"))
    assert queued_seconds() == 0.0
    assert math.isnan(timed(private_activity(), lambda: None).queued)


@LINUX
def test_the_calling_threads_account_is_read() -> None:
    before = queued_seconds()
    assert before >= 0.0
    assert queued_seconds() >= before


@LINUX
@pytest.mark.filterwarnings("error")
def test_an_account_that_an_interrupt_took_away_closes_without_a_word() -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with mock.patch.object(stopwatch._Account, "__enter__", interrupted), pytest.raises(KeyboardInterrupt):
        queued_seconds()
    assert len(os.listdir("/proc/self/fd")) == len(before)  # noqa: PTH208


def test_what_was_not_timed_is_nan() -> None:
    assert len(NO_TIMES) == len(Times._fields)
    assert all(math.isnan(one) for one in NO_TIMES)


def test_the_times_of_a_batch_in_parts_are_those_of_the_last_and_the_work_of_all() -> None:
    early = Times(begun=1.0, loaded=3.0, collated=3.5, sent=4.0, load_cpu=1.0, cpu=1.5, queued=0.25, slowest=2.0)
    last = Times(begun=2.0, loaded=5.0, collated=5.5, sent=6.0, load_cpu=0.5, cpu=0.75, queued=0.0)
    joined = joined_times([early, last])
    assert joined[:4] == last[:4]
    assert (joined.load_cpu, joined.cpu, joined.queued) == (1.5, 2.25, 0.25)
    assert (joined.slowest, joined.others) == (2.0, 3.0)
    assert math.isnan(joined_times([last, last]).slowest)
