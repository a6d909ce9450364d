"""Batches that change places: each sample comes once, whatever is saved and resumed in between."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batches.index import Positioned
from headrace.epoch.deferral import Deferral, merged

KEYS: dict[str, Any] = {
    "numbers": lambda position: 3 * position,
    "names": lambda position: f"sample {position}",
    "arrays": lambda position: 3 * position,
}


class Rank:
    """One rank: takes its share of the epoch in batches, some of which change places, and delivers them."""

    def __init__(self, kind: str, moved: Any, start: int, stop: int, rank: int, ranks: int, size: int) -> None:
        places = range(start + rank, stop, ranks)
        self.deferral = Deferral(moved, allowed=True, batched=True)
        self.kind = kind
        self.batches = [places[first : first + size] for first in range(0, len(places), size)]
        self.drawn: list[Positioned] = []
        self.delivered: list[tuple[int, Any]] = []
        self.turns = 0

    def draw(self) -> None:
        if len(self.drawn) < len(self.batches):
            places = self.batches[len(self.drawn)]
            keys = [KEYS[self.kind](place) for place in places]
            index = np.array(keys) if self.kind == "arrays" else keys
            self.drawn.append(self.deferral.take(len(self.drawn), Positioned(index, places)))

    def swap(self, other: int) -> None:
        """Has the next batch change places with one behind it, if both are drawn and may."""
        turns = self.turns, self.turns + other
        if turns[1] < len(self.drawn) and self.deferral.may_swap(*turns):
            self.deferral.swap(turns, turns)

    def deliver(self) -> None:
        if self.turns == len(self.drawn):
            self.draw()
        if self.turns < len(self.batches):
            index = self.drawn[self.deferral.task_in(self.turns)]
            self.delivered += zip(map(int, index.positions), list(index.index), strict=True)
            self.deferral.passed(self.turns - 1)
            self.turns += 1


@settings(deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.integers(1, 3), st.integers(1, 5), st.data())
def test_each_sample_comes_once_with_its_key(kind: str, ranks: int, size: int, data: st.DataObject) -> None:
    """Over three runs, with other numbers of ranks and other sizes of batches. Ranks go on in step."""
    length = data.draw(st.integers(1, 60))
    start = 0
    moved: Any = []
    delivered: list[tuple[int, Any]] = []
    for run in range(3):
        group = [Rank(kind, moved, start, length, rank, ranks, size) for rank in range(ranks)]
        steps = data.draw(st.integers(0, 8)) if run < 2 else length
        for _ in range(steps):
            for one in group:
                for _ in range(data.draw(st.integers(0, 3))):
                    one.draw()
                if data.draw(st.booleans()):
                    one.swap(data.draw(st.integers(1, 4)))
                one.deliver()
        delivered += [sample for one in group for sample in one.delivered]
        states = [json.loads(json.dumps(one.deferral.moved_from(one.turns))) for one in group]
        moved = merged(states)
        start = min(start + steps * size * ranks, length)
        ranks, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))

    positions = [position for position, _ in delivered]
    assert sorted(positions) == list(range(length))
    assert all(key == KEYS[kind](position) for position, key in delivered)


def test_a_batch_whose_keys_no_state_can_hold_stays_where_it_is() -> None:
    deferral = Deferral(allowed=True, batched=True)
    for number, keys in enumerate(([1, 2], [(1, 2), (3, 4)], [5, 6], [7])):
        deferral.take(number, Positioned(keys, range(2 * number, 2 * number + len(keys))))
    assert deferral.may_swap(0, 2)
    assert not deferral.may_swap(0, 1)  # pairs
    assert not deferral.may_swap(0, 3)  # another size
    assert not deferral.may_swap(0, 9)  # not taken yet


@pytest.mark.parametrize("allowed", [True, False])
def test_one_key_at_a_time(allowed: bool) -> None:
    """Without batches an index is a key; a state is honoured also where nothing may be deferred any more."""
    deferral = Deferral(allowed=True, batched=False)
    for number in range(3):
        deferral.take(number, Positioned(f"key {number}", [number]))  # type: ignore[arg-type]
    deferral.swap((0, 2), (0, 2))
    assert deferral.moved_from(1) == [[2, 0, "key 0", True]]
    resumed = Deferral(deferral.moved_from(1), allowed=allowed, batched=False)
    assert resumed.moved_from(1) == [[2, 0, "key 0", False]]
    taken = [resumed.take(number, Positioned(f"key {number}", [number])) for number in (1, 2)]  # type: ignore[arg-type]
    assert [(index.index, list(index.positions)) for index in taken] == [("key 1", [1]), ("key 0", [0])]
    assert resumed.moved_from(2) == [[2, 0, "key 0", True]]
    assert resumed.moved_from(3) == []
