"""Dealing positions to ranks, in plain numbers."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.world import World
from headrace.samplers.positions import Uneven, checked_uneven, local_range, stop_of

totals, starts, sizes = st.integers(0, 200), st.integers(0, 210), st.integers(1, 9)


def ranges(start: int, total: int, size: int, uneven: Uneven) -> list[range]:
    return [local_range(start, total, World(rank, size), uneven) for rank in range(size)]


@given(total=totals, start=starts, size=sizes)
def test_keep_deals_every_position_once_and_evenly(total: int, start: int, size: int) -> None:
    parts = ranges(start, total, size, "keep")
    assert sorted(chain(*parts)) == list(range(start, total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(map(len, parts), reverse=True) == list(map(len, parts))


@given(total=totals, start=starts, size=sizes)
def test_pad_goes_on_past_the_end_until_all_have_as_many(total: int, start: int, size: int) -> None:
    parts = ranges(start, total, size, "pad")
    dealt = sorted(chain(*parts))
    assert dealt == list(range(start, start + len(dealt)))
    assert len({*map(len, parts)}) == 1
    assert 0 <= len(dealt) - max(total - start, 0) < size


@given(total=totals, start=starts, size=sizes)
def test_drop_stops_before_the_end_where_all_have_as_many(total: int, start: int, size: int) -> None:
    parts = ranges(start, total, size, "drop")
    dealt = sorted(chain(*parts))
    assert dealt == list(range(start, start + len(dealt)))
    assert len({*map(len, parts)}) == 1
    assert 0 <= max(total - start, 0) - len(dealt) < size


@given(total=totals, start=starts, size=sizes, uneven=st.sampled_from(["pad", "drop", "keep"]))
def test_the_end_is_where_the_last_rank_stops(total: int, start: int, size: int, uneven: Uneven) -> None:
    assert stop_of(start, total, size, uneven) == max(chain(*ranges(start, total, size, uneven)), default=start - 1) + 1


@given(batch=st.integers(1, 5), size=sizes, steps=st.integers(1, 5), start=starts)
def test_a_global_batch_is_a_run_of_neighbours(batch: int, size: int, steps: int, start: int) -> None:
    parts = ranges(start, start + batch * size * steps, size, "keep")
    for step in range(steps):
        together = chain(*(part[step * batch : (step + 1) * batch] for part in parts))
        first = start + step * batch * size
        assert sorted(together) == list(range(first, first + batch * size))


@pytest.mark.parametrize("word", ["wrap", "", None, 1])
def test_unknown_words_for_positions_are_refused(word: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:    uneven=.*found:.*expected: 'pad', 'drop' or 'keep'"):
        checked_uneven(word)
