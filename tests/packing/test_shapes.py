"""Few lengths to pad to: the best there are, whatever the lengths."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.packing.shapes import AT_ONCE, best_lengths, counts_of


def padded(lengths: list[int], chosen: list[int]) -> int:
    """What the rows take if each is padded to the next of the lengths chosen."""
    return sum(min(length for length in chosen if length >= row) for row in lengths)


@given(lengths=st.lists(st.integers(0, 14), min_size=1, max_size=40), most=st.integers(1, 5))
@settings(deadline=None)
def test_no_other_lengths_pad_less(lengths: list[int], most: int) -> None:
    chosen = best_lengths(counts_of(np.array(lengths), 14), most)
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen))

    longest = max(lengths)
    others = sorted(set(lengths) - {longest})
    least = min(
        padded(lengths, [*some, longest]) for count in range(most) for some in combinations(others, min(count, most))
    )
    assert padded(lengths, chosen) == least


def test_lengths_are_counted_in_parts() -> None:
    lengths = np.random.default_rng(0).integers(0, 9, AT_ONCE + 5).astype(np.int32)
    lengths[-1] = 20
    assert counts_of(lengths, 20).tolist() == np.bincount(lengths).tolist()
    assert counts_of(lengths, 8).tolist() == np.bincount(lengths[:-1]).tolist()


def test_without_rows_there_are_no_lengths() -> None:
    assert best_lengths(counts_of(np.zeros(0, np.int64), 8), 4) == []
