"""A child ends with the process that started it, whatever it hangs in."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace.core.process.parent_watch import ParentWatch
from headrace.workers.processes.handle import readable

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children so on Linux only"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).pause()


def block_all_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    hold_the_interpreter()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


HANGS = [hold_the_interpreter, block_all_signals, stop]


class Family:
    """A process and the children that it has started; held by their pidfds, since nobody here is their parent."""

    def __init__(self, start: Callable[[], list[int]]) -> None:
        """start: is called in the process, and returns the children."""
        reading_end, told = os.pipe()
        self.parent = forked(lambda: parent_of_children(start, told))
        os.close(told)
        self.children = [os.pidfd_open(int(pid)) for pid in os.read(reading_end, 40).split()]
        os.close(reading_end)

    def kill_parent(self) -> None:
        os.kill(self.parent, signal.SIGKILL)
        os.waitid(os.P_PID, self.parent, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        os.kill(self.parent, signal.SIGKILL)
        os.waitpid(self.parent, 0)
        for pidfd in self.children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


@pytest.fixture
def family_of() -> Iterator[Callable[[Callable[[], list[int]]], Family]]:
    """Makes families. Whatever happens, they are gone afterwards."""
    with contextlib.ExitStack() as stack:

        def make(start: Callable[[], list[int]]) -> Family:
            family = Family(start)
            stack.callback(family.end)
            return family

        yield make


def forked(target: Callable[[], object]) -> int:
    """Forks a process that calls a function and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            target()
        finally:
            os._exit(0)
    return pid


def parent_of_children(start: Callable[[], list[int]], told: int) -> None:
    """What a process does that starts children, says their numbers, and waits."""
    os.write(told, " ".join(map(str, start())).encode())
    os.close(told)
    signal.pause()


def start_hanging(hang: Callable[[], object]) -> int:
    watch = ParentWatch.for_child()
    pid = forked(hang)
    watch.bind(pid)
    return pid


def ends(pidfd: int) -> bool:
    return readable(pidfd, 20)


@pytest.mark.parametrize("hang", HANGS)
def test_children_that_hang_end_with_their_parent(family_of: Callable[..., Family], hang: Callable[[], None]) -> None:
    family = family_of(lambda: [start_hanging(hang), start_hanging(hang)])
    assert not any(readable(child, 0) for child in family.children)
    family.kill_parent()
    assert all(ends(child) for child in family.children)


def test_a_child_outlives_the_thread_that_started_it(family_of: Callable[..., Family]) -> None:
    def start() -> list[int]:
        pids: list[int] = []
        thread = threading.Thread(target=lambda: pids.append(start_hanging(signal.pause)))
        thread.start()
        thread.join()
        return pids

    family = family_of(start)
    (child,) = family.children
    assert not readable(child, 0.2)
    family.kill_parent()
    assert ends(child)


def test_another_child_of_the_parent_keeps_none_alive(family_of: Callable[..., Family]) -> None:
    def start() -> list[int]:
        hanging = start_hanging(signal.pause)
        return [hanging, forked(signal.pause)]

    family = family_of(start)
    child, other = family.children
    family.kill_parent()
    assert ends(child)
    assert not readable(other, 0)


def test_a_child_that_begins_after_the_end_of_its_parent_ends(family_of: Callable[..., Family]) -> None:
    reading_end, told = os.pipe()
    gate, opened = os.pipe()

    def go_on(watch: ParentWatch) -> None:
        os.read(gate, 1)
        watch.begin()
        os.write(told, b"went on")

    def start() -> list[int]:
        watch = ParentWatch.for_child()
        return [forked(lambda: go_on(watch))]  # nobody has bound it

    family = family_of(start)
    (child,) = family.children
    family.kill_parent()
    os.write(opened, b"!")
    assert ends(child)
    os.close(told)
    assert os.read(reading_end, 20) == b""
    for fd in (reading_end, gate, opened):
        os.close(fd)


def begin(watch: ParentWatch) -> None:
    watch.begin()


@pytest.mark.quick(method="spawn")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_arrives_in_a_process_that_multiprocessing_starts(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=begin, args=(ParentWatch.for_child(),))
    process.start()
    process.join()
    assert process.exitcode == 0
