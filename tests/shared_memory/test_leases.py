"""Slots come back when, and only when, nobody can see them."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.shared_memory import leases, writer_memory
from headrace.shared_memory.arena import Arena, InboundRegion
from headrace.shared_memory.leases import KEEP, LocalMemory, ReturnBox
from headrace.shared_memory.memory import Bytes, FileBacking, Region, Slot
from tests import programs

MEGABYTE = 1 << 20


def resident(region: Region, slot: Slot) -> bool:
    return bool(region.view(slot, 1)[0])


def test_memory_is_used_again_only_after_every_view_is_gone() -> None:
    memory = LocalMemory()
    batch = memory.empty((MEGABYTE,), torch.uint8)
    address, view = batch.data_ptr(), batch[10:20].view(2, 5)
    del batch
    assert memory.empty((MEGABYTE,), torch.uint8).data_ptr() != address
    del view
    gc.collect()
    later = [memory.empty((MEGABYTE,), torch.uint8) for _ in range(2)]
    assert address in {tensor.data_ptr() for tensor in later}


def test_a_lease_outlives_its_arena() -> None:
    arena = Arena()
    region = arena.borrow()
    writer = region.ticket().writer()
    slot, array = writer.take(100)
    array[:] = 7
    lease = region.lease(slot, 100)
    gone = weakref.ref(arena)
    del arena, region, writer, array
    gc.collect()
    assert gone() is None
    assert lease.tolist() == [7] * 100


def test_a_writer_spares_a_slot_that_its_own_process_still_sees() -> None:
    region = Arena().borrow()
    writer = region.ticket().writer()
    slot, kept = writer.take(MEGABYTE)
    writer.finish({slot})
    writer.give_back([slot])
    other, _ = writer.take(MEGABYTE)
    assert other != slot
    del kept
    writer.give_back([])
    assert writer.take(MEGABYTE)[0] == slot


def test_slots_of_an_abandoned_batch_are_free_again() -> None:
    writer = Arena().borrow().ticket().writer()
    slot, array = writer.take(MEGABYTE)
    del array
    writer.finish(set())
    assert writer.take(MEGABYTE)[0] == slot


def test_the_next_writer_of_a_region_spares_kept_batches_and_hears_of_their_end() -> None:
    arena = Arena()
    region = arena.borrow()
    first = region.ticket().writer()
    slots = [first.take(MEGABYTE)[0] for _ in range(3)]
    leases = [region.lease(slot, MEGABYTE) for slot in slots]
    del leases[0]
    second = region.ticket().writer()
    assert second.take(MEGABYTE)[0] == slots[0]
    assert second.take(MEGABYTE)[0] not in slots
    leases.clear()
    assert sorted(region.returned()) == sorted(slots[1:])


class Child:
    """A forked child that lives until `end` is called."""

    def __init__(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            signal.pause()
            os._exit(0)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_forked_child_keeps_the_batches_of_its_parent_until_it_ends() -> None:
    arena = Arena()
    region = arena.borrow()
    writer = region.ticket().writer()
    slot, _ = writer.take(MEGABYTE)
    lease = region.lease(slot, MEGABYTE)
    region.hand_over([slot])
    child = Child()
    del lease
    assert region.returned() == []
    assert region.ticket().writer().take(MEGABYTE)[0] != slot
    child.end()
    assert region.returned() == [slot]
    assert region.returned() == []


def test_what_two_children_see_is_kept_until_both_have_ended() -> None:
    arena = Arena()
    region = arena.borrow()
    writer = region.ticket().writer()
    slots = [writer.take(MEGABYTE)[0] for _ in range(2)]
    leases = [region.lease(slot, MEGABYTE) for slot in slots]
    region.hand_over(slots)
    before = descriptors()
    first = Child()
    leases.pop()
    assert region.returned() == []
    second = Child()
    leases.pop()
    assert region.returned() == []
    first.end()
    assert region.returned() == [slots[1]]
    second.end()
    assert region.returned() == [slots[0]]
    assert descriptors() == before


def test_what_was_not_handed_over_or_has_come_back_is_not_kept_for_a_child() -> None:
    arena = Arena()
    region = arena.borrow()
    writer = region.ticket().writer()
    slots = [writer.take(MEGABYTE)[0] for _ in range(2)]
    leases = [region.lease(slot, MEGABYTE) for slot in slots]
    region.hand_over(slots[:1])
    del leases[0]
    child = Child()
    leases.clear()
    assert region.returned() == slots
    child.end()


def in_use(region: InboundRegion, slots: list[Slot]) -> list[Bytes]:
    """Hands slots over, with a 1 in the first byte of each. Returns their leases."""
    leases = [region.lease(slot, 1) for slot in slots]
    for lease in leases:
        lease[0] = 1
    region.hand_over(slots)
    return leases


def test_the_pages_that_a_child_sees_are_not_given_up_in_a_flood_of_returns() -> None:
    arena = Arena()
    region = arena.borrow()
    slots = [Slot(4, index * 300 * MEGABYTE, 300 * MEGABYTE) for index in range(2)]
    leases = in_use(region, slots)
    child = Child()
    leases.clear()
    child.end()
    assert [int(region.lease(slot, 1)[0]) for slot in slots] == [1, 1]


WHILE_IT_FORKS = """
import os, signal, sys
hooks = {"before": [], "after": []}
def run(when):
    while hooks[when]:
        hooks[when].pop()()
# Registered before headrace's, they run between those and the fork.
os.register_at_fork(before=lambda: run("before"), after_in_parent=lambda: run("after"))

from headrace.shared_memory.arena import Arena

class Case:
    def __init__(self):
        self.region = Arena().borrow()
        self.slot, _ = self.region.ticket().writer().take(1 << 20)
        self.lease = self.region.lease(self.slot, 1 << 20)

    def hand_over(self):
        self.region.hand_over([self.slot])

    def drop(self):
        del self.lease
        assert self.region.returned() == []

    def made_now(self):
        self.__init__()
        self.hand_over()

case = Case()
exec(sys.argv[1])
pid = os.fork()
if pid == 0:
    signal.pause()
if hasattr(case, "lease"):
    case.drop()
assert case.region.returned() == []
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
assert case.region.returned() == [case.slot]
assert case.region.returned() == []
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "hooks",
    [
        "hooks['before'] = [case.hand_over]",
        "hooks['before'] = [case.hand_over]; hooks['after'] = [case.drop]",
        "case.hand_over(); hooks['after'] = [case.drop]",
        "hooks['before'] = [case.made_now]",
        "hooks['before'] = [case.made_now]; hooks['after'] = [case.drop]",
    ],
)
def test_what_happens_to_a_batch_while_a_child_is_forked_is_known_for_the_child(hooks: str) -> None:
    """Other threads may do so at any moment; here other hooks do."""
    run = programs.run(["-c", WHILE_IT_FORKS, hooks], fresh=True)
    assert (run.returncode, run.stderr) == (0, "")


INTERRUPTED = """
import os, signal, sys

from headrace.shared_memory import forks
from headrace.shared_memory.arena import Arena

sys.unraisablehook = lambda drop: None  # Python drops what is raised in functions that are called at a fork

def in_use():
    slot, _ = writer.take(1 << 20)
    lease = region.lease(slot, 1 << 20)
    region.hand_over([slot])
    return slot, lease

def fork(interrupted_at):
    left = interrupted_at

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != forks.__file__:
            return None
        left -= 1
        if not left:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    pid = os.fork()
    happened = sys.gettrace() is None
    sys.settrace(None)
    if pid == 0:
        signal.pause()
    return pid, happened

def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

point = 0
happened = True
while happened:
    point += 1
    region = Arena().borrow()
    writer = region.ticket().writer()
    slot, lease = in_use()
    pid, happened = fork(point)
    del lease
    too_early = region.returned()
    if sys.argv[1] == "fork":
        end(fork(0)[0])
    end(pid)
    assert too_early == [], point
    later, lease = in_use()
    del lease
    assert later in region.returned(), point
print(point)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["fork", "go on"])
def test_an_interrupt_at_a_fork_harms_no_batch_and_lets_no_memory_pile_up(then: str) -> None:
    run = programs.run(["-c", INTERRUPTED, then], fresh=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert int(run.stdout) > 30


@pytest.mark.parametrize("looked", ["while the child lives", "when it has ended"])
@pytest.mark.parametrize("dropped", ["while the child lives", "when it has ended"])
def test_what_a_child_saw_gives_its_pages_up_in_a_flood_of_returns_once_it_has_ended(dropped: str, looked: str) -> None:
    arena = Arena()
    region = arena.borrow()
    slots = [Slot(4, index * 100 * MEGABYTE, 100 * MEGABYTE) for index in range(8)]
    leases = in_use(region, slots)
    child = Child()
    if dropped == "while the child lives":
        leases.clear()
        if looked == "while the child lives":
            assert region.returned() == []
        assert [resident(region._region, slot) for slot in slots] == [True] * 8
    child.end()
    while leases:
        leases.pop(0)
    assert sorted(region.returned()) == slots
    assert [resident(region._region, slot) for slot in slots] == [True] * 4 + [False] * 4


def test_a_grandchild_keeps_batches_too() -> None:
    arena = Arena()
    region = arena.borrow()
    writer = region.ticket().writer()
    slot, _ = writer.take(MEGABYTE)
    lease = region.lease(slot, MEGABYTE)
    region.hand_over([slot])
    stop, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        if os.fork() == 0:
            os.read(stop, 1)
        os._exit(0)
    os.close(stop)
    os.waitpid(pid, 0)
    del lease
    assert region.returned() == []
    os.close(go)
    while not (back := region.returned()):  # the end of a process that is not our child
        pass
    assert back == [slot]


def test_a_return_box_does_nothing_in_a_forked_child() -> None:
    backing = FileBacking.create()
    backing.reserve(1)
    region = Region(backing, 0)
    slot = Slot(0, 0, 2 * KEEP)
    region.view(slot, 1)[0] = 1
    box = ReturnBox(region)
    pid = os.fork()
    if pid == 0:
        box.put(slot)
        os._exit(len(box.empty()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert resident(region, slot)


def test_a_flood_of_returned_slots_gives_its_pages_back() -> None:
    region = Region(FileBacking.create(), 0)
    region.backing.reserve(1)  # type: ignore[attr-defined]
    box = ReturnBox(region)
    slots = [Slot(4, index * 100 * MEGABYTE, 100 * MEGABYTE) for index in range(8)]
    for slot in slots:
        region.view(slot, 1)[0] = 1
        box.put(slot)
    assert [resident(region, slot) for slot in slots] == [True] * 4 + [False] * 4
    assert box.empty() == slots


@contextlib.contextmanager
def files_of_at_most(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def shared_memory_of_this_process() -> int:
    """Bytes of shared memory that count as this process's."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssShmem")) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted by Linux only")
def test_a_huge_batch_is_counted_once_and_its_memory_comes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (leases, writer_memory):
        monkeypatch.setattr(module, "HUGE", 32 * MEGABYTE)
    region = Arena().borrow()
    writer = region.ticket().writer()
    kept_small, _ = writer.take(16 * MEGABYTE)
    slot, array = writer.take(32 * MEGABYTE)
    array[:] = 7
    before = shared_memory_of_this_process()
    del array
    writer.finish({slot, kept_small})
    # Kernels count in portions, up to 64 pages late.
    assert before - shared_memory_of_this_process() == pytest.approx(32 * MEGABYTE, abs=MEGABYTE)
    backing = writer._region.backing
    assert isinstance(backing, FileBacking)
    lease = region.lease(slot, 32 * MEGABYTE)
    assert bool((lease == 7).all())
    held = os.fstat(backing.fd).st_blocks * 512
    del lease
    assert held - os.fstat(backing.fd).st_blocks * 512 == 32 * MEGABYTE
    writer.give_back(region.returned())
    assert writer.take(32 * MEGABYTE)[0] == slot


def test_with_a_limit_on_file_sizes_each_region_has_what_the_limit_allows() -> None:
    with files_of_at_most(100 * MEGABYTE):
        arena = Arena()
        for number in range(3):
            region = arena.borrow()
            writer = region.ticket().writer()
            arrays = [writer.take(30 * MEGABYTE) for _ in range(3)]
            for slot, array in arrays:
                array[::4096] = number
                assert region.lease(slot, 30 * MEGABYTE)[::4096].tolist() == array[::4096].tolist()
            with pytest.raises(RuntimeError, match="ulimit -f unlimited"):
                writer.take(30 * MEGABYTE)
            del array, arrays
            writer.finish(set())
            assert writer.take(30 * MEGABYTE)[1].size == 30 * MEGABYTE


def test_a_limit_on_file_sizes_below_one_batch_is_named_with_its_fix() -> None:
    with files_of_at_most(MEGABYTE):
        writer = Arena().borrow().ticket().writer()
        with pytest.raises(RuntimeError, match="ulimit -f unlimited"):
            writer.take(2 * MEGABYTE)
