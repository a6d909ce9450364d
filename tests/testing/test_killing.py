"""The killer kills who may be killed, and nobody else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.context import ForkProcess

import pytest

from headrace.testing import Hang, Killer


@pytest.fixture
def processes() -> Iterator[list[ForkProcess]]:
    started = [multiprocessing.get_context("fork").Process(target=Hang()) for _ in range(3)]
    for process in started:
        process.start()
    yield started
    for process in started:
        process.kill()
        process.join()
        process.close()


def alive(processes: list[ForkProcess]) -> list[int]:
    return [process.pid for process in processes if process.is_alive() and process.pid is not None]


def test_all_are_killed_in_the_end_and_the_own_process_never(processes: list[ForkProcess]) -> None:
    with Killer(lambda: [os.getpid(), *alive(processes)], every=0.01, seed=1) as killer:
        for process in processes:
            process.join(20)
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * 3
    assert {pid for _, pid in killer.kills} == {process.pid for process in processes}
    moments = [moment for moment, _ in killer.kills]
    assert moments == sorted(moments)
    assert moments[0] >= 0.01


def test_the_signal_may_be_another(processes: list[ForkProcess]) -> None:
    with Killer(lambda: [processes[0].pid or 0], every=0.01, signal=signal.SIGTERM):
        processes[0].join(20)
    assert (processes[0].exitcode, len(alive(processes))) == (-signal.SIGTERM, 2)


def test_the_seed_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(seed: int) -> list[int]:
        enough, sent = threading.Event(), list[int]()

        def kill(pid: int, _signal: int) -> None:
            sent.append(pid)
            if len(sent) == 20:
                enough.set()

        monkeypatch.setattr("headrace.testing.killer.os.kill", kill)
        others = [pid for pid in range(2, 12) if pid != os.getpid()]
        with Killer(lambda: others, every=0.001, seed=seed):
            assert enough.wait(20)
        return sent[:20]

    assert chosen(3) == chosen(3)
    assert chosen(3) != chosen(4)


def test_processes_that_are_gone_and_an_empty_list_are_passed_over() -> None:
    gone = multiprocessing.get_context("fork").Process(target=os.getpid)
    gone.start()
    pid = gone.pid
    gone.join()
    asked, lists = threading.Event(), iter([[], [pid], [pid]])

    def pids() -> list[int]:
        try:
            return next(lists)  # type: ignore[return-value]
        except StopIteration:
            asked.set()
            return []

    with Killer(pids, every=0.001) as killer:
        assert asked.wait(20)
    assert killer.kills == []


def test_an_error_while_asking_is_raised_at_the_end() -> None:
    asked = threading.Event()

    def pids() -> list[int]:
        asked.set()
        raise LookupError("no workers")

    with pytest.raises(LookupError, match="no workers"), Killer(pids, every=0.001):
        assert asked.wait(20)
