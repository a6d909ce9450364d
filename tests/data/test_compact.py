"""`headrace.compact`: the items that come back are what went in, and take less."""

from __future__ import annotations

import gc
import pickle
import sys
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.utils.data import Dataset

import headrace
from headrace import compact
from headrace.core.errors import UsageError


class Pair(NamedTuple):
    name: str
    number: int


Point = namedtuple("Point", "x y")


class Plain(tuple[int, ...]):
    """A tuple of the user's own, without names."""


class Word(str):
    """A string of the user's own."""


def alike(one: Any, other: Any) -> bool:
    """Tells whether two items are equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return alike(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other) or (one != one and other != other)


def check(items: list[Any]) -> None:
    """All ways to get items give what went in; also after pickling."""
    made = compact(items)
    for frozen in (made, pickle.loads(pickle.dumps(made))):
        assert len(frozen) == len(items)
        assert alike(list(frozen), items)
        assert alike([frozen[place] for place in range(len(items))], items)
        assert alike([frozen[place - len(items)] for place in range(len(items))], items)
        for place in (len(items), -len(items) - 1):
            with pytest.raises(IndexError):
                frozen[place]


LISTS: dict[str, list[Any]] = {
    "empty": [],
    "one": ["only"],
    "paths": [f"data/class{number % 3}/{number}.jpg" for number in range(200)],
    "few paths among strings": ["a", "b", "c/d"],
    "odd paths": ["/", "a/", "/a", "//", "é/日本", "a/\udcff.jpg", ""],
    "strings": [f"word {number}" for number in range(200)],
    "strings of one length": ["abc", "def", "ghi"],
    "odd strings": ["", "a\0", "é", "\n", "\udcff", "🙂"],
    "no characters": ["", "", ""],
    "bytes that look like characters": ["\udcc3\udca9", "a"],
    "half of a character": ["\ud800", "a"],
    "half of a character in a path": ["a/\ud800", "a/b"],
    "byte strings": [b"", b"a", bytes(range(256)), b"\0" * 3],
    "no bytes": [b"", b""],
    "even arrays": [np.full((2, 3), number, np.float32) for number in range(5)],
    "ragged arrays": [np.arange(number, dtype=np.int16) for number in range(5)],
    "ragged rows": [np.ones((number, 2)) for number in (3, 0, 1)],
    "rows of nothing": [np.ones((2, 0)), np.ones((5, 0))],
    "single numbers as arrays": [np.array(1), np.array(2)],
    "arrays of two types": [np.zeros(2, np.int32), np.zeros(2, np.float32)],
    "arrays of foreign byte order": [np.array([1, 2], ">i4"), np.array([3], ">i4")],
    "arrays of objects": [np.array(["a", None], object), np.array([1], object)],
    "dates": [np.array(["2020-01-01"], "M8[D]")] * 3,
    "whole numbers": [3, -5, 70_000],
    "bytes of numbers": [0, 255],
    "below nothing and large": [-1, 1 << 40],
    "below nothing and larger": [-1, (1 << 62) + 1],
    "to the end of 64 bits": [-(1 << 63), (1 << 63) - 1],
    "unsigned": [0, (1 << 64) - 1],
    "one and very large": [1, (1 << 63) + 1],
    "both ends": [-1, 1 << 63],
    "more than 64 bits": [1, 1 << 64, -(1 << 200)],
    "floats": [0.1, -0.0, float("inf"), float("nan"), 5e-324],
    "bools": [True, False, True],
    "bools and numbers": [True, 1, 1.0],
    "complex": [1j, 2j],
    "NumPy numbers": [np.float32(1), np.float32(2)],
    "nothing": [None, None],
    "tuples": [(f"a/{number}.jpg", number, number * 0.5) for number in range(50)],
    "tuples of two lengths": [(1,), (1, 2)],
    "empty tuples": [(), ()],
    "named tuples": [Pair("a", 1), Pair("b", 2)],
    "points": [Point(1, "x"), Point(2, "y")],
    "named and plain tuples": [Pair("a", 1), ("b", 2)],
    "tuples of one's own": [Plain((1, 2)), Plain((3, 4))],
    "sizes": [torch.Size([1, 2]), torch.Size([3, 4])],
    "dicts": [{"path": f"a/{number}", "label": number} for number in range(50)],
    "dicts of other keys": [{"a": 1}, {"b": 1}],
    "dicts of another order": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "dicts of equal keys": [{1: "a"}, {True: "b"}],
    "empty dicts": [{}, {}],
    "ordered dicts": [OrderedDict(a=1), OrderedDict(a=2)],
    "strings of one's own": [Word("a"), Word("b")],
    "tensors": [torch.arange(3), torch.arange(2)],
    "sets": [{1, 2}, {3}],
    "lists": [[1, 2], [3], []],
    "mixed": [1, "a", None, b"b", [2], (3,), {"c": 4}, 5.0],
    "nested": [{"box": (1, 2, (3.0, "x")), "tags": ["a", "b"], "meta": {"id": number}} for number in range(9)],
    "tuples with a mixed column": [(1, "a"), (2, None), (3, b"c")],
}


@pytest.mark.parametrize("kind", LISTS)
def test_items_come_back_as_they_were(kind: str) -> None:
    check(LISTS[kind])


numbers = st.integers() | st.integers(-(1 << 70), 1 << 70)
texts = st.text(st.characters(codec=None, exclude_categories=()))  # halves of characters, too
scalars = st.none() | st.booleans() | numbers | st.floats() | texts | st.binary()
items = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.tuples(st.text(), st.integers()).map(lambda pair: Pair(*pair))
        | st.dictionaries(st.text(max_size=3) | st.integers(-1, 2) | st.booleans(), inner, max_size=3)
    ),
    max_leaves=6,
)
array_types = arrays.boolean_dtypes() | arrays.integer_dtypes() | arrays.floating_dtypes() | arrays.byte_string_dtypes()
some_arrays = st.tuples(array_types, st.integers(0, 2)).flatmap(
    lambda kind: st.lists(
        arrays.arrays(kind[0], arrays.array_shapes(min_dims=kind[1], max_dims=kind[1], min_side=0, max_side=3)),
        max_size=5,
    )
)
lists = (
    st.lists(items, max_size=8)
    | some_arrays
    | st.one_of(*(st.lists(one) for one in (st.booleans(), numbers, st.floats(), texts, st.binary())))
    | st.lists(st.tuples(texts, numbers, st.floats()))
    | st.lists(st.fixed_dictionaries({"path": texts, "label": numbers, "box": st.tuples(numbers, st.none() | texts)}))
    | st.lists(st.lists(st.text("ab", max_size=2), min_size=1, max_size=4).map("/".join))
)


@settings(deadline=None, max_examples=300)
@given(given_items=lists)
def test_whatever_goes_in_comes_back(given_items: list[Any]) -> None:
    check(given_items)


@settings(deadline=None)
@given(count=st.integers(0, 12), cut=st.slices(12), kind=st.sampled_from(["paths", "strings", "tuples", "lists"]))
def test_slices_are_lists_of_the_same_items(count: int, cut: slice, kind: str) -> None:
    plain = (LISTS[kind] * 4)[:count]
    assert compact(plain)[cut] == plain[cut]


@pytest.mark.parametrize("kind", ["paths", "strings", "tuples", "lists", "whole numbers"])
def test_a_compact_list_is_an_immutable_sequence(kind: str) -> None:
    plain = LISTS[kind]
    frozen = compact(plain)
    assert list(frozen) == plain
    assert plain[1] in frozen
    assert list(reversed(frozen)) == plain[::-1]
    assert frozen[np.int64(1)] == plain[1]
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError):
            frozen[wrong]
    with pytest.raises(TypeError):
        frozen[0] = plain[1]


def test_what_is_read_is_the_reader_s_own() -> None:
    for plain in (LISTS["ragged arrays"], LISTS["lists"]):
        frozen = compact(plain)
        first = frozen[1]
        first[0] = 77
        assert frozen[1][0] != 77


def test_what_is_given_may_be_changed_afterwards() -> None:
    given_arrays = [np.zeros(3) for _ in range(4)]
    frozen = compact(given_arrays)
    given_arrays[2][:] = 1
    assert frozen[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", ["paths", "strings", "whole numbers", "tuples", "mixed", "empty"])
def test_any_iterable_will_do(kind: str) -> None:
    plain = LISTS[kind]
    assert list(compact(iter(plain))) == plain
    assert list(compact(item for item in plain)) == plain
    assert list(compact(tuple(plain))) == plain


def test_a_range_and_a_set_give_their_items() -> None:
    assert list(compact(range(5))) == [0, 1, 2, 3, 4]
    assert sorted(compact({"a", "b"})) == ["a", "b"]


def test_what_is_compact_already_stays_as_it_is() -> None:
    for kind in ("paths", "strings", "tuples"):
        frozen = compact(LISTS[kind])
        assert compact(frozen) is frozen
    array = np.arange(3)
    assert compact(array) is array


def test_a_dict_of_lists_keeps_its_keys() -> None:
    frozen = compact({"names": ["a/b", "a/c"], "labels": [1, 2], "classes": 3, "title": "text"})
    assert {name: list(frozen[name]) for name in ("names", "labels")} == {"names": ["a/b", "a/c"], "labels": [1, 2]}
    assert (frozen["classes"], frozen["title"]) == (3, "text")
    assert list(frozen) == ["names", "labels", "classes", "title"]


@pytest.mark.parametrize("wrong", ["text", b"bytes", 5, 0.5, None, object()], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_list_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a list, or another iterable"):
        compact(wrong)


def size_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return sys.getsizeof(value) + sum(map(size_of, inner))


@pytest.mark.parametrize("kind", ["paths", "strings", "whole numbers", "tuples", "dicts", "bools", "floats"])
def test_a_compact_list_takes_less_memory_than_the_list(kind: str) -> None:
    plain = (LISTS[kind] * 1000)[:1000]
    frozen = compact(plain)
    assert frozen.nbytes * 2 < sys.getsizeof(plain) + sum(map(size_of, plain))
    assert len(pickle.dumps(frozen)) < frozen.nbytes + 2000


def test_the_repr_of_a_compact_list_says_its_kind_and_size() -> None:
    assert "1,000 numbers" in repr(compact(range(1000)))
    assert "50 tuples" in repr(compact(LISTS["tuples"]))


class Holding(Dataset[Any]):
    """Gives the items of compacted lists."""

    def __init__(self) -> None:
        self.lists = {kind: compact(LISTS[kind]) for kind in ("paths", "strings", "tuples", "ragged arrays", "nested")}
        self.places = [(kind, place) for kind, items in self.lists.items() for place in range(len(items))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        kind, place = self.places[index]
        return self.lists[kind][place]


@pytest.fixture
def forks_may_have_threads() -> Iterator[None]:
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    yield
    gc.collect()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_see_the_same_items(method: str, forks_may_have_threads: None) -> None:
    dataset = Holding()
    loader = headrace.DataLoader(dataset, 9, num_workers=2, multiprocessing_context=method, collate_fn=list)
    expected = [LISTS[kind][place] for kind, place in dataset.places]
    assert alike([item for batch in loader for item in batch], expected)
