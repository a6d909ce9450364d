"""Arrays of samples that differ in length."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from headrace import Ragged
from headrace.core.errors import UsageError
from headrace.data.formats.columns import Loose


def test_a_ragged_tensor_is_values_and_offsets() -> None:
    ragged = Ragged(np.arange(6), np.array([0, 2, 2, 6]))
    assert (len(ragged), ragged.lengths.tolist(), ragged[2].tolist()) == (3, [2, 0, 4], [2, 3, 4, 5])
    assert ragged.offsets.tolist() == [0, 2, 2, 6]


def test_offsets_are_there_for_samples_that_lie_end_to_end_only() -> None:
    starts, stops = np.array([0, 3]), np.array([3, 5])
    assert Ragged(np.arange(6), None, starts, stops).offsets.tolist() == [0, 3, 5]
    assert Ragged(np.arange(6), None, starts[:0], stops[:0]).offsets.tolist() == [0]
    with pytest.raises(UsageError, match="gaps"):
        _ = Ragged(np.arange(6), None, np.array([0, 4]), stops).offsets


def test_a_ragged_tensor_with_other_values_has_the_same_offsets() -> None:
    ragged = Ragged(np.arange(6), np.array([0, 2, 6]))
    wide = ragged.with_values(np.zeros((6, 3)))
    assert wide[1].shape == (4, 3)
    with pytest.raises(UsageError, match="6 values"):
        ragged.with_values(np.zeros(5))


def test_loose_samples_are_put_end_to_end_when_somebody_asks() -> None:
    arrays = [np.array([1, 2]), np.empty(0, np.int64), np.array([3, 4, 5])]
    loose = Loose(arrays, np.array([2, 0, 3]))
    assert (len(loose), loose.lengths.tolist(), loose.offsets.tolist()) == (3, [2, 0, 3], [0, 2, 2, 5])
    assert loose.arrays is arrays
    assert [one.tolist() for one in (loose[0], loose[1], loose[2])] == [[1, 2], [], [3, 4, 5]]
    assert loose.arrays is None
    loose.values[0] = 9
    assert loose.take(np.array([2, 0])).values.tolist() == [3, 4, 5, 9, 2]
    assert arrays[0].tolist() == [1, 2]
    other = pickle.loads(pickle.dumps(loose))
    assert (other.values.tolist(), other.offsets.tolist()) == ([9, 2, 3, 4, 5], [0, 2, 2, 5])
