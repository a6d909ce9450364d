"""Which ranges bring rows of arrays: they cover the rows, do not overlap, and are the same for all who ask."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.formats.columns import byte_spans
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.remote_arrays import Pieces, StoredArray
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.remote_files import RemoteFiles
from headrace.storage.stores.objects import ObjectInfo, StoreConfig
from headrace.storage.stores.registry import StoreSettings

BLOCK = 32
PART = 100


class Files:
    """Files of random bytes, in which the pieces of one array lie, in any order, with other bytes between them."""

    def __init__(self, draw: st.DrawFn) -> None:
        random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        self.dtype = np.dtype(draw(st.sampled_from(["u1", "<i2", ">f8"])))
        self.shape = draw(st.sampled_from([(), (3,), (2, 20)]))
        row = self.dtype.itemsize * int(np.prod(self.shape))
        rows = draw(st.lists(st.integers(0, 30), min_size=1, max_size=5))
        count = draw(st.integers(1, 3))
        order = draw(st.permutations(range(len(rows))))
        ends = [0] * count
        places: dict[int, tuple[int, int]] = {}
        for piece in order:
            file = draw(st.integers(0, count - 1))
            start = ends[file] + draw(st.integers(0, 9))
            places[piece] = file, start
            ends[file] = start + rows[piece] * row

        self.bytes = [random.integers(0, 256, end + 5).astype(np.uint8) for end in ends]
        infos = [ObjectInfo(f"{number}", len(data), "e", None) for number, data in enumerate(self.bytes)]
        settings = StoreSettings(StoreConfig("http", "nowhere", {}), None)
        self.addresses = Addresses(RemoteFiles(settings, infos))
        files = np.array([places[piece][0] for piece in range(len(rows))])
        starts = np.array([places[piece][1] for piece in range(len(rows))])
        self.array = StoredArray(self.addresses, Pieces(files, starts, np.array(rows)), self.dtype, self.shape)
        parts = []
        for piece, length in enumerate(rows):
            file, start = places[piece]
            data = self.bytes[file][start : start + length * row]
            parts.append(np.frombuffer(data.tobytes(), self.dtype).reshape(length, *self.shape))
        self.values = np.concatenate(parts, dtype=self.dtype)

    def read(self, ranges: list[ByteRange]) -> Any:
        parts = [self.bytes[int(one.object.key)][one.start : one.stop] for one in ranges]
        return np.concatenate([np.empty(0, np.uint8), *parts])


@st.composite
def files(draw: st.DrawFn) -> Files:
    return Files(draw)


def small_blocks() -> Any:
    return mock.patch.multiple(byte_spans, BLOCK=BLOCK, PART=PART, TOGETHER=3)


def check_apart(ranges: list[ByteRange]) -> None:
    for one, other in itertools.pairwise(sorted(ranges)):
        assert one.object != other.object or one.stop <= other.start
    assert all(0 < one.size <= PART for one in ranges)


@settings(max_examples=200)
@given(stored=files(), data=st.data(), alone=st.booleans())
def test_rows_are_covered_by_ranges_that_lie_apart(stored: Files, data: st.DataObject, alone: bool) -> None:
    total = len(stored.values)
    drawn = data.draw(st.lists(st.integers(0, max(total - 1, 0)), max_size=40 if total else 0))
    keys = np.array(drawn, np.int64)
    with small_blocks():
        reading = stored.array.reading(keys, keys + 1, alone=alone)
        ranges = reading.units.ranges(stored.addresses)
        again = stored.array.reading(keys[::-1], keys[::-1] + 1, alone=alone).units.ranges(stored.addresses)

    check_apart(ranges)
    assert again == ranges
    rows, places = reading.rows(stored.read(ranges))
    assert reading.units.nbytes == sum(one.size for one in ranges)
    assert rows[places].tobytes() == stored.values[keys].tobytes()
    if alone:
        assert reading.units.nbytes == len(set(drawn)) * stored.array.row_bytes


@settings(max_examples=200)
@given(stored=files(), data=st.data(), alone=st.booleans(), length=st.integers(1, 12))
def test_windows_are_covered_also_over_the_ends_of_pieces(
    stored: Files, data: st.DataObject, alone: bool, length: int
) -> None:
    last = len(stored.values) - length
    starts = np.array(data.draw(st.lists(st.integers(0, max(last, 0)), max_size=20 if last >= 0 else 0)), np.int64)
    with small_blocks():
        cut_starts, cut_stops = stored.array.split(starts, length)
        reading = stored.array.reading(cut_starts, cut_stops, alone=alone)
        ranges = reading.units.ranges(stored.addresses)

    check_apart(ranges)
    rows, places = reading.rows(stored.read(ranges))
    found = b""
    for place, count in zip(places.tolist(), (cut_stops - cut_starts).tolist(), strict=True):
        found += rows[place : place + count].tobytes()
    assert found == b"".join(stored.values[start : start + length].tobytes() for start in starts.tolist())


@settings(max_examples=100)
@given(stored=files())
def test_the_whole_array_comes_in_its_order(stored: Files) -> None:
    with small_blocks():
        ranges = stored.array.whole().ranges(stored.addresses)

    check_apart(ranges)
    found = stored.array.from_whole(stored.read(ranges))
    assert found.shape == stored.values.shape
    assert found.tobytes() == stored.values.tobytes()


@given(stored=files(), data=st.data())
def test_neighbours_that_are_asked_for_apart_share_their_blocks(stored: Files, data: st.DataObject) -> None:
    """Two batches within a block announce the same range, which is then fetched once."""
    if len(stored.values) == 0:
        return

    key = data.draw(st.integers(0, len(stored.values) - 1))
    with small_blocks():
        one = np.array([key])
        (first,) = stored.array.reading(one, one + 1, alone=False).units.ranges(stored.addresses)[:1]
        all_keys = np.arange(len(stored.values))
        everything = stored.array.reading(all_keys, all_keys + 1, alone=False).units

    starts = stored.addresses.of(int(first.object.key), np.array([first.start]))
    assert 0 <= int(everything.places(starts)[0]) < everything.nbytes
