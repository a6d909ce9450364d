"""The running process as an object."""

from __future__ import annotations

import os

import pytest

from headrace.core.process import this_process
from headrace.core.process.per_process import Handle


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
