"""Samples of different lengths, padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.batch_memory import OwnMemory
from headrace.core.ragged import ELEMENTS
from headrace.data.formats.columns import Loose, Ragged, offsets_of
from headrace.data.formats.columns.schema import Field
from headrace.data.gather import Padder, RaggedAs, whole

LENGTHS = st.lists(st.integers(0, 9) | st.integers(0, 3 * ELEMENTS), min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.sampled_from([(), (3,), (2, 2), (0,)]), st.sampled_from(["u1", "f4", "f8", "i2"]), st.data())
def test_padding_copies_each_sample_and_fills_up_with_zeros(
    lengths: list[int], shape: tuple[int, ...], dtype: str, data: Any
) -> None:
    sizes = np.array(lengths, np.int64)
    gaps = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes))))
    starts = np.cumsum(sizes + gaps) - sizes
    order = np.array(data.draw(st.permutations(range(len(sizes)))))
    starts, sizes = starts[order], sizes[order]
    total = int((starts + sizes).max())
    values = (np.arange(total * int(np.prod(shape))).reshape(total, *shape) % 251 + 1).astype(dtype)
    padder, longest = Padder(), int(sizes.max())
    for target in (dtype, "f8"):  # as it is, converted, and by the index that is there from before
        out = np.full((len(sizes), longest, *shape), 9, target)
        padder.pad(values, starts, sizes, out)
        for place, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            assert np.array_equal(out[place, :size], values[start : start + size])
            assert not out[place, size:].any()


@pytest.mark.parametrize("length", [ELEMENTS // 2, ELEMENTS * 2])
def test_padding_does_not_take_the_places_of_another_batch(length: int) -> None:
    values = np.arange(1000, dtype=np.int64)
    padder = Padder()
    for first in (0, 7, 0, 300):
        starts, lengths = np.array([first, first + 100]), np.array([length, length - 1])
        out = np.empty((2, length), np.int64)
        padder.pad(values, starts, lengths, out)
        assert out[0].tolist() == list(range(first, first + length))
        assert out[1, -1] == 0


@pytest.mark.parametrize("form", ["pad", "nested", "list"])
def test_loose_samples_make_the_same_batch_as_those_end_to_end(form: RaggedAs) -> None:
    arrays = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) for n in (3, 0, 7, 1)]
    lengths = np.array([3, 0, 7, 1])
    field = Field("value", "ragged", np.dtype(np.float32), (2,))
    packed = Ragged(np.concatenate(arrays), offsets_of(lengths))
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        made = whole(field, Loose(arrays, lengths), dtype, form, OwnMemory())
        expected = whole(field, packed, dtype, form, OwnMemory())
        if form == "nested":
            made, expected = made.unbind(), expected.unbind()
        assert len(made) == len(expected) > 0
        for one, other in zip(made, expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
