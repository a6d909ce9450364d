"""One instance per process, for as long as somebody uses it."""

from __future__ import annotations

import gc
import os
import weakref

from headrace.core.process.per_process import PerProcess


class Thing:
    pass


def test_all_users_in_a_process_get_the_same_instance() -> None:
    things = PerProcess(Thing)
    kept = things.get()
    assert things.get() is kept


def test_the_instance_goes_with_its_last_user() -> None:
    things = PerProcess(Thing)
    first = things.get()
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    assert isinstance(things.get(), Thing)


def test_a_forked_child_gets_an_instance_of_its_own() -> None:
    things = PerProcess(Thing)
    kept = things.get()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if things.get() is not kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert things.get() is kept
