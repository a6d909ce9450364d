"""Which blocks leave: no other choice makes more hits."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cache.eviction import NEVER, NextUses


def next_uses(trace: tuple[int, ...]) -> list[int]:
    """For each position, the next one of the same block."""
    found = []
    for position, block in enumerate(trace):
        later = [other for other in range(position + 1, len(trace)) if trace[other] == block]
        found.append(min(later, default=NEVER))
    return found


def hits_of(trace: tuple[int, ...], room: int) -> int:
    """Hits of a cache that asks `NextUses`."""
    uses: NextUses[int] = NextUses()
    hits = 0
    for block, next_use in zip(trace, next_uses(trace), strict=True):
        if block in uses:
            hits += 1
            uses.set(block, 1, next_use)
            continue
        if len(uses) == room:
            victims = uses.victims(1, next_use)
            if victims is None:
                continue
            for victim in victims:
                uses.remove(victim)
        uses.set(block, 1, next_use)
    return hits


def best_hits(trace: tuple[int, ...], room: int, bypass: bool) -> int:
    """The most hits of any choices, by trying all of them."""

    @cache
    def most(position: int, held: frozenset[int]) -> int:
        if position == len(trace):
            return 0
        block = trace[position]
        if block in held:
            return 1 + most(position + 1, held)
        choices = [held] if bypass else []
        if len(held) < room:
            choices.append(held | {block})
        else:
            choices += [held - {victim} | {block} for victim in held]
        return max(most(position + 1, choice) for choice in choices)

    return most(0, frozenset())


@given(st.lists(st.integers(0, 4), max_size=12).map(tuple), st.integers(1, 3))
def test_no_choice_of_victims_makes_more_hits(trace: tuple[int, ...], room: int) -> None:
    assert best_hits(trace, room, bypass=True) == hits_of(trace, room)


@given(st.lists(st.integers(0, 4), max_size=12).map(tuple), st.integers(1, 3))
def test_a_cache_that_must_store_every_block_makes_no_more_hits(trace: tuple[int, ...], room: int) -> None:
    assert best_hits(trace, room, bypass=False) <= hits_of(trace, room)


BLOCKS = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=8)


@given(BLOCKS, BLOCKS, st.integers(1, 20), st.integers(0, 9))
def test_victims_are_the_farthest_and_as_few_as_needed(
    first: dict[int, tuple[int, int]], second: dict[int, tuple[int, int]], needed: int, next_use: int
) -> None:
    uses: NextUses[int] = NextUses()
    for blocks in (first, second):
        for key, (nbytes, position) in blocks.items():
            uses.set(key, nbytes, position)
    known = first | second
    assert sum(nbytes for nbytes, _ in known.values()) == uses.nbytes

    victims = uses.victims(needed, next_use)
    farther = sum(nbytes for nbytes, position in known.values() if position > next_use)
    kept = len(known) - sum(position > next_use for _, position in known.values())
    assert (victims is None) == (farther < needed and kept > 0)
    if victims is not None and farther < needed:
        assert {*victims} == {*known}
    elif victims is not None:
        left = [position for key, (_, position) in known.items() if key not in victims]
        nearest = min(known[key][1] for key in victims)
        assert nearest > next_use
        assert nearest >= max(left, default=0)
        assert sum(known[key][0] for key in victims[:-1]) < needed <= sum(known[key][0] for key in victims)
        assert victims == uses.victims(needed, next_use)


def test_of_blocks_without_a_known_next_use_the_first_one_leaves() -> None:
    uses: NextUses[str] = NextUses()
    for key in "abc":
        uses.set(key, 1, NEVER)
    assert ["a", "b"] == uses.victims(2, 5)
    assert uses.victims(1, NEVER) is None


def test_outdated_next_uses_take_no_memory() -> None:
    uses: NextUses[int] = NextUses()
    for position in range(10_000):
        uses.set(position % 10, 1, position)
    assert len(uses._heap) < 200
    assert [9] == uses.victims(1, 0)


def test_a_removed_block_is_no_victim() -> None:
    uses: NextUses[int] = NextUses()
    uses.set(1, 10, 9)
    uses.set(2, 10, 8)
    uses.remove(1)
    uses.remove(7)
    assert [2] == uses.victims(5, 0)
    assert uses.victims(11, 8) is None
