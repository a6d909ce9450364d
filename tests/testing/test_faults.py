"""Each fault really happens, in a process of its own."""

from __future__ import annotations

import _thread
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import Balloon, Exit, Fault, Hang, Kill, Leak, LimitMemory, Raise, Segfault
from headrace.testing.memory_faults import STEP
from tests.testing.jobs import exits_0_after, run

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MB = 1 << 20


class TwoArguments(Exception):
    """Cannot be made again from its `args`."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def anonymous_memory() -> int:
    """Returns the bytes of this process that no file backs, whoever shares them: a fork does not change them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def grows_by(fault: Callable[[], object]) -> int:
    before = anonymous_memory()
    fault()
    return anonymous_memory() - before


def exits_by_growth(fault: Callable[[], object]) -> None:
    os._exit(min(grows_by(fault) // MB, 255))


@pytest.mark.parametrize(
    ("fault", "method", "code"),
    [
        (Exit(), "fork", 1),
        (Exit(7), "fork", 7),
        (Segfault(), "fork", -signal.SIGSEGV),
        (Segfault(), "spawn", -signal.SIGSEGV),
        (Kill(), "fork", -signal.SIGKILL),
        (Kill(signal.SIGTERM), "fork", -signal.SIGTERM),
    ],
)
def test_the_process_ends_as_the_fault_says(fault: Fault, method: str, code: int) -> None:
    assert run(fault, method=method) == code


@pytest.mark.parametrize(
    "fault",
    [Exit(3), Segfault(), Kill(), Hang(), Hang(0.5), Leak(5), Balloon(6), LimitMemory(7)],
    ids=repr,
)
def test_a_fault_can_be_sent(fault: Any) -> None:
    assert pickle.loads(pickle.dumps(fault)) == fault


def test_an_error_is_sent_with_its_fault() -> None:
    fault = pickle.loads(pickle.dumps(Raise(OSError(5, "input/output error"))))
    with pytest.raises(OSError, match="input/output error") as caught:
        fault()
    assert caught.value.errno == 5


def test_each_call_raises_an_error_without_the_traceback_and_notes_of_the_last() -> None:
    error = ValueError("bad pixel")
    error.add_note("from the start")
    fault, caught = Raise(error), []
    for _ in range(3):
        with pytest.raises(ValueError, match="bad pixel") as one:
            fault()
        one.value.add_note("of this call")
        caught.append(one.value)
    assert [one.__notes__ for one in caught] == [["from the start", "of this call"]] * 3
    assert len(traceback.extract_tb(caught[2].__traceback__)) == len(traceback.extract_tb(caught[0].__traceback__))
    assert error.__notes__ == ["from the start"]


def test_an_error_that_cannot_be_copied_is_raised_itself() -> None:
    error = TwoArguments(1, 2)
    with pytest.raises(TwoArguments) as caught:
        Raise(error)()
    assert caught.value is error


def test_a_hang_ends_after_its_seconds_and_costs_no_time_of_the_processor() -> None:
    before, used = time.monotonic(), time.process_time()
    Hang(0.2)()
    assert time.monotonic() - before >= 0.2
    assert time.process_time() - used < 0.1


def test_a_signal_handler_runs_during_a_hang() -> None:
    assert run(hang_until_alarm) == 5


def hang_until_alarm() -> None:
    signal.signal(signal.SIGALRM, lambda *_: os._exit(5))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    Hang()()


def test_a_signal_that_does_not_wake_the_main_thread_ends_a_hang() -> None:
    assert run(hang_until_interrupted) == 6


def hang_until_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # It marks the signal and wakes nobody, as one does that comes just before the thread falls asleep.
    threading.Timer(0.1, _thread.interrupt_main).start()
    try:
        Hang()()
    except KeyboardInterrupt:
        os._exit(6)


@LINUX
def test_a_leak_stays_and_a_balloon_is_freed() -> None:
    assert run(exits_by_growth, Leak(100 * MB)) in range(95, 110)
    assert run(exits_by_growth, Balloon(200 * MB)) in range(10)


def balloon_within(limit: int) -> None:
    import resource

    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + limit, resource.RLIM_INFINITY))
    before = anonymous_memory()
    try:
        Balloon(16 * STEP)()
    except MemoryError:  # bound to no name, and yet the traceback holds the frames until the handler is left
        os._exit(min((anonymous_memory() - before) // MB, 255))
    os._exit(255)


@LINUX
def test_a_balloon_that_meets_a_limit_raises_and_is_freed() -> None:
    assert run(balloon_within, 4 * STEP) in range(10)


@LINUX
def test_the_memory_limit_raises_a_memory_error_and_is_gone_afterwards() -> None:
    assert run(exits_0_after, LimitMemory(), MemoryError) == 0
    assert run(allocates_behind_the_limit) == 0


def allocates_behind_the_limit() -> None:
    for _ in range(3):
        try:
            LimitMemory(MB)()
        except MemoryError:
            bytearray(256 * MB)
        else:
            os._exit(2)
