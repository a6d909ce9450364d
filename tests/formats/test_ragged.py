"""Arrays of samples that differ in length."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import Ragged
from headrace.core.errors import UsageError


def test_it_is_values_and_offsets() -> None:
    ragged = Ragged(np.arange(6), np.array([0, 2, 2, 6]))
    assert (len(ragged), ragged.lengths.tolist(), ragged[2].tolist()) == (3, [2, 0, 4], [2, 3, 4, 5])
    assert ragged.offsets.tolist() == [0, 2, 2, 6]


def test_offsets_are_there_for_samples_that_lie_end_to_end_only() -> None:
    starts, stops = np.array([0, 3]), np.array([3, 5])
    assert Ragged(np.arange(6), None, starts, stops).offsets.tolist() == [0, 3, 5]
    assert Ragged(np.arange(6), None, starts[:0], stops[:0]).offsets.tolist() == [0]
    with pytest.raises(UsageError, match="gaps"):
        _ = Ragged(np.arange(6), None, np.array([0, 4]), stops).offsets


def test_other_values_take_the_same_offsets() -> None:
    ragged = Ragged(np.arange(6), np.array([0, 2, 6]))
    wide = ragged.with_values(np.zeros((6, 3)))
    assert wide[1].shape == (4, 3)
    with pytest.raises(UsageError, match="6 values"):
        ragged.with_values(np.zeros(5))
