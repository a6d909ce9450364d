"""Arrays of samples that differ in length."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import FormatError, UsageError
from headrace.core.ragged import ELEMENTS, LONG, texts_in
from headrace.data.formats.columns import Loose, offsets_of
from headrace.types import Ragged


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


PIECES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9) | st.integers(0, 3 * ELEMENTS)), max_size=8)


@settings(max_examples=150, deadline=None)
@given(PIECES, st.sampled_from([(), (3,), (2, 2), (0,), (LONG,)]), st.sampled_from(["u1", "f4", "?", "i2"]))
def test_samples_are_taken_whatever_their_length(
    pieces: list[tuple[int, int]], shape: tuple[int, ...], dtype: str
) -> None:
    total = 300 + 3 * ELEMENTS
    values = (np.arange(total * int(np.prod(shape))).reshape(total, *shape) % 251).astype(dtype)
    starts = np.array([start for start, _ in pieces], np.int64)
    stops = starts + np.array([length for _, length in pieces], np.int64)
    ragged = Ragged(values, None, starts, stops)
    keys = np.arange(len(pieces))[::-1]
    taken = ragged.take(keys)
    assert (len(taken), taken.values.dtype) == (len(pieces), values.dtype)
    for place, key in enumerate(keys.tolist()):
        assert np.array_equal(taken[place], values[starts[key] : stops[key]])
    packed, offsets = ragged.packed()
    assert offsets.tolist() == offsets_of(stops - starts).tolist()
    assert all(np.array_equal(packed[offsets[i] : offsets[i + 1]], ragged[i]) for i in range(len(ragged)))


ENDS = st.integers(-3, 9) | st.sampled_from([-(2**63), 2**63 - 1, -(2**62), 2**62])


@settings(max_examples=500, deadline=None)
@given(st.lists(ENDS, max_size=5) | st.lists(st.integers(0, 6), max_size=5).map(sorted))
def test_damaged_offsets_are_found_out_however_they_are_damaged(ends: list[int]) -> None:
    offsets = np.array(ends or [0], np.int64)
    ragged = Ragged(np.arange(6), offsets)
    sound = len(ragged) == 0 or (ends == sorted(ends) and ends[0] >= 0 and ends[-1] <= 6)
    for look in (ragged.pieces, ragged.check, lambda: ragged.pieces(np.arange(len(ragged)))):
        if not sound:
            with pytest.raises(FormatError, match="offsets"):
                look()
            continue

        look()
        starts, lengths = ragged.pieces()
        assert (starts.tolist(), lengths.tolist()) == (offsets[:-1].tolist(), np.diff(offsets).tolist())


def test_checked_samples_are_checked_again_behind_other_values() -> None:
    offsets = np.array([0, 2, 6])
    ragged = Ragged(np.arange(6), offsets)
    ragged.check()
    offsets[1] = 5
    ragged.check()
    assert ragged.pieces()[1].tolist() == [5, 1]
    ragged.values = np.arange(4)
    with pytest.raises(FormatError, match="offsets"):
        ragged.pieces()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=6) | st.text("ab", max_size=6), max_size=8), st.data(), st.integers(0, 40))
def test_texts_come_as_they_were_whatever_lies_between_them(texts: list[str], data: st.DataObject, gap: int) -> None:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    blob = b"".join(one + b"\xff" * gap for one in encoded)
    lengths = np.array([len(one) for one in encoded], np.int64)
    starts = np.cumsum(lengths + gap) - lengths - gap
    order = np.array(data.draw(st.permutations(range(len(texts)))), np.int64)
    values = np.frombuffer(blob, np.uint8)
    found = texts_in(values, starts[order], lengths[order])
    assert found == [encoded[place].decode("utf-8", "surrogateescape") for place in order]


BIG = 1 << 62


@pytest.mark.parametrize(
    "offsets",
    [[0, 3, 2, 6], [-1, 2, 6], [0, 7], [0, 2 * BIG - 1, -2 * BIG, -1, 6], [5, 4], [2 * BIG - 1, -2 * BIG]],
    ids=["descending", "negative", "too long", "once around", "all descending", "over the end"],
)
def test_damaged_offsets_are_noticed(offsets: list[int]) -> None:
    edges = np.array(offsets, np.int64)
    for ragged in (Ragged(np.arange(6), edges), Ragged(np.arange(6), None, edges[:-1], edges[1:])):
        with np.errstate(over="ignore"):
            with pytest.raises(FormatError, match="damaged"):
                ragged.pieces()
            with pytest.raises(FormatError, match="damaged"):
                ragged.pieces(np.arange(len(ragged)))
