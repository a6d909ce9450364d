"""Spawn with few descriptors: the error says which limit to raise, as torch's does."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.multiprocessing

from headrace.workers.processes.fork_server import ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfds")

WORDS = "Too many open files. Communication with the workers is no longer possible. .*`ulimit -n`"


def nothing(worker_spec: object, order: object) -> None:
    """The target of a worker."""


@contextlib.contextmanager
def at_most(files: int) -> Iterator[None]:
    """Limits the descriptors that this process may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def without_gaps() -> Iterator[int]:
    """Takes every descriptor below the highest one that is open; yields the first number that is free."""
    highest = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
    taken = []
    while not taken or taken[-1] < highest:
        taken.append(os.dup(0))
    yield taken[-1] + 1
    for fd in taken:
        os.close(fd)


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer(torch.multiprocessing.get_context("spawn"))
    # The helper's own limit: this process may have many descriptors open that tests before have left.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(fork_server.pid, resource.RLIMIT_NOFILE, (64, hard))
    yield fork_server
    fork_server.close()


@pytest.mark.thorough
def test_descriptors_that_do_not_arrive_are_an_error_that_names_the_limit(fork_server: ForkServer) -> None:
    connections = [end for _ in range(50) for end in multiprocessing.Pipe()]
    with pytest.raises(RuntimeError, match=WORDS):
        fork_server.load(connections)
    fork_server.load(connections[:4])
    process = fork_server.fork(nothing, None)
    process.join()
    assert process.exitcode == 0


@pytest.mark.thorough
def test_a_worker_whose_descriptor_does_not_arrive_is_an_error_that_names_the_limit(fork_server: ForkServer) -> None:
    fork_server.load(None)
    errors = []
    with without_gaps() as first_free:
        for spare in range(8):
            with at_most(first_free + spare):
                try:
                    fork_server.fork(nothing, None).join()
                except OSError as error:
                    assert error.errno == errno.EMFILE
                    errors.append("no file could be opened")
                except RuntimeError as error:
                    errors.append(str(error))
    assert "no file could be opened" in errors
    assert any("`ulimit -n`" in error for error in errors), errors
