"""Indices drawn before they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.epoch import look_ahead
from headrace.epoch.look_ahead import AT_ONCE, LookAhead


class Listener:
    """Has room for so many indices that have not left."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.announced: list[tuple[int, Any]] = []
        self.left = 0
        self.ends = 0
        self.told = 0

    def has_room(self) -> bool:
        return len(self.announced) - self.left < self.room

    def announce(self, position: int, index: Any) -> None:
        self.announced.append((position, index))

    def ended(self) -> None:
        self.ends += 1

    def drawn(self) -> None:
        self.told = len(self.announced)

    def passed(self, position: int) -> None:
        self.left = position + 1


class Counting:
    """A sampler whose state is how many indices it gave."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.given += 1
            yield index


@given(length=st.integers(0, 60), room=st.integers(0, 80), first=st.integers(0, 10))
def test_the_indices_and_their_states_are_those_of_the_sampler(length: int, room: int, first: int) -> None:
    sampler = Counting(length)
    listener = Listener(room)
    ahead = LookAhead(iter(sampler), lambda: sampler.given, listener, first)
    seen = []
    for index in ahead:
        seen.append(index)
        assert ahead.state() == index + 1
        assert sampler.given <= len(seen) + max(room, 0) + AT_ONCE
        assert listener.told == len(listener.announced)
        listener.left = len(seen)

    assert seen == list(range(length))
    assert listener.announced == [(first + index, index) for index in range(length)]
    assert listener.ends > 0 or not length


@pytest.mark.parametrize(("seconds", "drawn"), [(0.0, AT_ONCE), (60.0, 5_000)])
def test_the_first_one_waits_only_so_long_for_others(
    monkeypatch: pytest.MonkeyPatch, seconds: float, drawn: int
) -> None:
    monkeypatch.setattr(look_ahead, "FIRST_DRAW", seconds)
    sampler = Counting(10_000)
    listener = Listener(5_000)
    ahead = LookAhead(iter(sampler), None, listener, 0)
    assert sampler.given == 0
    next(ahead)
    assert sampler.given == listener.told == drawn
    assert ahead.state() is None
    for _ in range(1000):
        next(ahead)
    assert sampler.given == 5_000


def test_without_room_each_index_is_drawn_when_it_is_needed() -> None:
    sampler = Counting(100)
    ahead = LookAhead(iter(sampler), None, Listener(0), 0)
    for index in range(50):
        assert next(ahead) == index
        assert sampler.given == index + 1
