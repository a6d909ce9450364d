"""Says what a piece of code has left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import threading
import time
from collections.abc import Iterator
from operator import attrgetter

from headrace.core.errors import explain
from headrace.shared_memory.forks import forget_those_gone
from headrace.testing.belongings import Belongings, command_of, parent_of


class LeakError(AssertionError):
    """Something was left behind: close it, join it, or wait for it.

    Examples:
        >>> from headrace.testing import LeakError, no_leaks
        >>> try:
        ...     with no_leaks(timeout=0.1):
        ...         file = open("x.bin", "wb")
        ... except LeakError:
        ...     file.close()
    """


@contextlib.contextmanager
def no_leaks(*, memory: int | None = None, timeout: float = 10.0) -> Iterator[None]:
    """Checks that a `with` leaves no children, threads, open descriptors or files in /dev/shm.

    What is garbage is collected first. If the `with` itself raises, nothing is checked: the exception's traceback keeps
    things alive.

    What libraries open once and keep (thread pools, a GPU's devices) counts if it happens in here for the first time:
    run the code once before. Not seen: threads that C++ code starts, and children of children that have ended. Files in
    /dev/shm that another user made, or that a process holds which is not of this tree, are passed over. Linux;
    elsewhere only threads are seen.

    Args:
        memory: bytes by which the memory of this process and its children (PSS) may grow; None: any.
        timeout: seconds in all that children and threads get to end.

    Yields:
        None.

    Raises:
        LeakError: something is left.

    Examples:
        >>> from headrace.testing import no_leaks
        >>> with no_leaks():
        ...     total = sum(range(10))
    """
    gc.collect()
    before = Belongings.now(memory=memory is not None)
    yield
    # Looking at the list of children waits for those that have ended: until then they are processes without memory.
    gc.collect()
    multiprocessing.active_children()
    forget_those_gone()
    left = Belongings.now().beyond(before)
    if left.processes or left.threads:
        _wait(left, time.monotonic() + timeout)
        gc.collect()
        forget_those_gone()

    left = Belongings.now(memory=memory is not None).beyond(before)
    lines = describe(left, memory)
    if lines:
        message = explain(
            "something was left behind",
            found="\n            ".join(lines),
            expected="the children, threads, descriptors and shared memory that were there before",
            fix="close, join or wait for each; or run the code once before, if a library keeps it on purpose",
        )
        raise LeakError(message)


def describe(left: Belongings, memory: int | None = None) -> list[str]:
    """Returns a line for each thing left, and one for memory if it grew by more than `memory` bytes."""
    lines = []
    for pid, _ in sorted(left.processes):
        lines.append(f"child process {pid}: {command_of(pid)}")
    for thread in sorted(left.threads, key=attrgetter("name")):
        lines.append(f"thread {thread.name}")
    for fd, target in sorted(left.descriptors.items()):
        lines.append(f"descriptor {fd}: {target}")
    for path in sorted(left.shared):
        lines.append(f"shared memory {path}")

    if memory is not None and left.memory > memory:
        lines.append(f"memory: {left.memory:,} bytes more than before, {memory:,} allowed")
    return lines


def _wait(left: Belongings, until: float) -> None:
    """Returns once these children and threads have ended, or at `until` on the monotonic clock."""
    for pid, _ in left.processes:
        _wait_for_process(pid, until)
        _wait_for_its_parent(pid, until)
    multiprocessing.active_children()
    for thread in left.threads - {threading.current_thread()}:
        thread.join(max(0.0, until - time.monotonic()))


def _wait_for_process(pid: int, until: float) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return  # gone

    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, until - time.monotonic()) * 1000)
    finally:
        os.close(pidfd)


def _wait_for_its_parent(pid: int, until: float) -> None:
    """Waits until a child's child, which has ended, is gone: its own parent takes note of that, and the kernel tells
    nobody else."""
    while parent_of(pid) not in (None, os.getpid()) and time.monotonic() < until:
        time.sleep(0.005)
