"""The running process as an object."""

from __future__ import annotations

import os
import signal
import time

import pytest

from headrace.core.process import this_process
from headrace.core.process.per_process import Handle
from headrace.core.process.this_process import ForkLock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_another_process_and_opens_for_itself() -> None:
    opened: list[int] = []
    handle = Handle(lambda: opened.append(os.getpid()) or os.getpid())
    before = this_process.current
    assert handle.get() == os.getpid()
    child = os.fork()
    if child == 0:
        sound = this_process.current is not before and handle.get() == os.getpid() and len(opened) == 2
        os._exit(0 if sound else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert this_process.current is before
    assert handle.get() == os.getpid()
    assert len(opened) == 1


def test_a_handler_that_raises_leaves_no_lock_taken() -> None:
    lock = ForkLock()

    class Interrupted(Exception):
        """Raised by the handler."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGVTALRM, interrupt)
    interrupted = 0
    until = time.monotonic() + 20
    try:
        while interrupted < 300 and time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0003)
                while True:
                    with lock.here:
                        pass
            except Interrupted:
                interrupted += 1
            assert not lock.here.locked(), f"after {interrupted} interrupts"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert interrupted
