"""Slots come back when, and only when, nobody can see them."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch

from headrace.transport.arena import Arena
from headrace.transport.leases import KEEP, LocalMemory, ReturnBox
from headrace.transport.memory import FileBacking, Region, Slot

pytestmark = pytest.mark.alone

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


def test_a_forked_child_may_keep_the_batches_of_its_parent() -> None:
    arena = Arena()
    region = arena.borrow()
    writer = region.ticket().writer()
    slot, _ = writer.take(MEGABYTE)
    lease = region.lease(slot, MEGABYTE)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    del lease
    assert region.returned() == []
    assert region.ticket().writer().take(MEGABYTE)[0] != slot


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


@pytest.mark.parametrize("limit", [1 << 20])
def test_a_limit_on_file_sizes_is_named_with_its_cure(limit: int) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(RuntimeError, match="ulimit -f unlimited"):
            Arena().borrow()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
