"""Processes and those that they have started, some of which end while somebody looks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from headrace.core.process.memory import process_tree

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
child.communicate(b"go\\n")
"""


def test_children_of_children_are_members() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert process_tree(parent.pid) == [parent.pid, grandchild]
        assert {parent.pid, grandchild} <= set(process_tree(os.getpid()))
        parent.communicate("go\n")


def test_a_process_that_has_ended_has_no_children() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert process_tree(ended.pid) == [ended.pid]


@pytest.mark.thorough
def test_processes_that_come_and_go_are_no_error() -> None:
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            subprocess.run(["true"], check=True)

    coming = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in coming:
        thread.start()
    try:
        for _ in range(1000):
            assert process_tree(os.getpid())[0] == os.getpid()
    finally:
        done.set()
        for thread in coming:
            thread.join()
