"""The bookkeeping of slots, as properties over random histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.shared_memory.memory import FIRST_CHUNK, Slot
from headrace.shared_memory.slots import KEPT, PAGE, PATIENCE, SlotPool, capacity_for

sizes = st.one_of(st.integers(1, 5 * PAGE), st.integers(1, 3 * FIRST_CHUNK))
histories = st.lists(st.tuples(sizes, st.integers(0, 5)), min_size=1, max_size=60)


def overlap(one: Slot, other: Slot) -> bool:
    return (
        one.chunk == other.chunk
        and one.offset < other.offset + other.capacity
        and other.offset < one.offset + one.capacity
    )


def play(pool: SlotPool, history: list[tuple[int, int]]) -> list[Slot]:
    """Allocates a slot for each size and frees an earlier one now and then; returns the slots still in use."""
    used: list[Slot] = []
    for size, freed in history:
        slot = pool.allocate(size)
        assert slot.capacity >= size
        assert slot.offset % PAGE == 0
        assert slot.offset + slot.capacity <= FIRST_CHUNK << slot.chunk
        assert not any(overlap(slot, other) for other in used)
        used.append(slot)
        if freed < len(used):
            pool.release(used.pop(freed))
    return used


@given(histories)
def test_slots_in_use_never_overlap(history: list[tuple[int, int]]) -> None:
    play(SlotPool(lambda slot: None), history)


@given(histories, histories)
def test_a_new_pool_of_the_region_spares_what_is_still_leased(
    before: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    leased = play(SlotPool(lambda slot: None), before)
    pool = SlotPool(lambda slot: None)
    pool.adopt([], leased)
    taken = [pool.allocate(size) for size, _ in after]
    assert not any(overlap(slot, other) for slot in taken for other in leased)


@given(st.integers(1, 1 << 40))
def test_a_slot_wastes_at_most_an_eighth_or_a_page(nbytes: int) -> None:
    capacity = capacity_for(nbytes)
    assert nbytes <= capacity <= nbytes + max(nbytes // 8, PAGE) + 1
    assert capacity_for(capacity) == capacity


def test_the_slot_that_was_freed_last_is_taken_first() -> None:
    pool = SlotPool(lambda slot: None)
    first, second = pool.allocate(PAGE), pool.allocate(PAGE)
    pool.release(first)
    pool.release(second)
    assert [pool.allocate(PAGE), pool.allocate(PAGE)] == [second, first]


def test_slots_that_nobody_needs_any_more_give_their_pages_back_and_stay_usable() -> None:
    discarded: list[Slot] = []
    pool = SlotPool(discarded.append)
    surplus = [pool.allocate(KEPT) for _ in range(5)]
    for slot in surplus:
        pool.release(slot)
    for _ in range(3 * PATIENCE):
        pool.release(pool.allocate(KEPT))
    assert sorted(discarded) == sorted(surplus[:4])
    assert sorted(pool.allocate(KEPT) for _ in range(5)) == sorted(surplus)


def test_a_few_small_slots_keep_their_pages() -> None:
    discarded: list[Slot] = []
    pool = SlotPool(discarded.append)
    count = KEPT // (4 * PAGE)
    for slot in [pool.allocate(4 * PAGE) for _ in range(count + 3)]:
        pool.release(slot)
    for _ in range(3 * PATIENCE):
        pool.release(pool.allocate(4 * PAGE))
    assert len(discarded) == 3


def test_a_steady_need_takes_no_new_slots() -> None:
    pool = SlotPool(lambda slot: None)
    seen = set()
    for _ in range(1000):
        pair = pool.allocate(100_000), pool.allocate(30_000)
        seen.update(pair)
        for slot in pair:
            pool.release(slot)
    assert len(seen) == 2
