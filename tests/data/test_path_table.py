"""The table gives back every path, in every encoding, for few bytes."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.path_table import PathTable

AWKWARD = [b"", b"/", b"a/", b"a/b", b"a//b", b"\xff/\xfe", b"\x00"]
byte_strings = st.lists(st.binary(max_size=12) | st.sampled_from(AWKWARD))


@given(byte_strings)
def test_every_path_comes_back_as_it_went_in(encoded: list[bytes]) -> None:
    paths = [os.fsdecode(path) for path in encoded]
    table = PathTable.from_paths(paths)
    assert len(paths) == len(table)
    assert paths == list(table)
    assert paths == [table[position] for position in range(len(table))]
    assert paths[::-1] == [table[-1 - position] for position in range(len(table))]


@given(byte_strings)
def test_a_pickled_table_holds_the_same_paths(encoded: list[bytes]) -> None:
    paths = [os.fsdecode(path) for path in encoded]
    assert paths == list(pickle.loads(pickle.dumps(PathTable.from_paths(paths))))


@pytest.mark.parametrize("index", [3, -4, 10**12, -(10**12)])
def test_an_index_out_of_range_is_an_index_error(index: int) -> None:
    table = PathTable.from_paths(["x/a", "x/b", "y/c"])
    with pytest.raises(IndexError, match=f"no path {index} in a table of 3 paths"):
        table[index]


def test_an_empty_table_has_no_paths() -> None:
    table = PathTable.from_paths([])
    assert list(table) == []
    with pytest.raises(IndexError):
        table[0]


def test_numpy_integers_index_the_table_and_floats_do_not() -> None:
    table = PathTable.from_paths(["x/a", "x/b"])
    assert table[np.uint64(1)] == "x/b"
    with pytest.raises(TypeError):
        table[1.0]  # type: ignore[index]


def test_each_folder_is_stored_once_however_its_paths_are_mixed() -> None:
    table = PathTable.from_paths([f"{folder}/{row}" for row in range(50) for folder in ("a", "b/c", "b")])
    assert len(table.folders) == 3
    assert len("a/b/c/b/") == table.folders.buffer.nbytes


@pytest.mark.parametrize(("folders", "dtype"), [(1, np.uint8), (255, np.uint8), (257, np.uint16), (65_537, np.uint32)])
def test_the_folder_index_has_the_smallest_dtype_that_fits(folders: int, dtype: type) -> None:
    table = PathTable.from_paths(f"{folder}/x" for folder in range(folders))
    assert dtype == table.folder_of.dtype
    assert f"{folders - 1}/x" == table[-1]


@pytest.mark.parametrize(("length", "dtype"), [(255, np.uint8), (256, np.uint16), (65_536, np.uint32)])
def test_offsets_have_the_smallest_dtype_that_fits(length: int, dtype: type) -> None:
    table = PathTable.from_paths(["n" * length])
    assert dtype == table.names.offsets.dtype
    assert "n" * length == table[0]


def test_a_hundred_thousand_paths_take_their_names_and_less_than_12_bytes_each() -> None:
    paths = [f"/data/photos/train/class_{row // 1000:04d}/image_{row:08d}.jpg" for row in range(100_000)]
    table = PathTable.from_paths(paths)
    names = sum(len(path.rpartition("/")[2]) for path in paths)
    assert table.nbytes < names + 12 * len(paths)
    assert len(pickle.dumps(table)) < table.nbytes + 2000
    assert table.nbytes < sum(map(sys.getsizeof, paths)) / 3


@pytest.mark.parametrize("again", [False, True], ids=["built", "unpickled"])
def test_no_part_of_a_table_can_be_changed(again: bool) -> None:
    table = PathTable.from_paths(["x/a", "y/b"])
    if again:
        table = pickle.loads(pickle.dumps(table))
    arrays = [table.folder_of]
    for packed in (table.names, table.folders):
        arrays += [packed.buffer, packed.offsets]
    assert [array.flags.writeable for array in arrays] == [False] * 5
    with pytest.raises(AttributeError):
        table.names = table.folders  # type: ignore[misc]


def test_the_table_says_what_it_holds() -> None:
    table = PathTable.from_paths(["x/a", "x/b", "y/c"])
    assert f"PathTable(3 paths in 2 folders, {table.nbytes} bytes)" == repr(table)
