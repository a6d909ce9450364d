"""Whatever a dataset holds arrives in the process that loads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headrace.shared_memory import packed_object
from headrace.shared_memory.array_file import SMALL
from headrace.shared_memory.packed_object import COMPARED, PackedObject, unpack


def shipped(obj: Any) -> Any:
    """Returns an object as it comes out at the other end."""
    packed = PackedObject(obj)
    assert packed.holds(obj) != bool(packed.inside)
    inside = [os.dup(fd) for fd in packed.inside]
    try:
        return unpack(packed.manifest, os.dup(packed.pickle), os.dup(packed.bytes), inside)
    finally:
        packed.close()
        # Those of `packed.inside` belong to the object, which closes them: closed here as well, their numbers would be
        # those of other files by then.
        for fd in inside:
            os.close(fd)


class Named(torch.Tensor):
    """A subclass with an attribute."""


class Wrapping(torch.Tensor):
    """A subclass without memory of its own, around another tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapping:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Wrapping, (self.inner,)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def named() -> torch.Tensor:
    tensor = torch.arange(6.0).as_subclass(Named)
    tensor.label = "six"  # type: ignore[attr-defined]
    return tensor


MATRIX = torch.eye(64) * torch.arange(64.0)

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "coo": MATRIX.to_sparse,
    "csr": MATRIX.to_sparse_csr,
    "csc": MATRIX.to_sparse_csc,
    "bsr": lambda: MATRIX.to_sparse_bsr((2, 2)),
    "bsc": lambda: MATRIX.to_sparse_bsc((2, 2)),
    "conjugate": lambda: MATRIX.to(torch.complex64).mul(1j).conj(),
    "expanded": lambda: torch.ones(3, 1).expand(3, 50),
    "parameter": lambda: torch.nn.Parameter(MATRIX),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_tensor_of_any_layout_is_shipped(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    (arrived,) = shipped([tensor])
    assert (type(arrived), arrived.layout, arrived.dtype) == (type(tensor), tensor.layout, tensor.dtype)
    assert torch.equal(arrived.to_dense(), tensor.to_dense())
    assert arrived.requires_grad == tensor.requires_grad


@pytest.mark.thorough  # torch imports its compiler for a nested tensor, and all later forks copy that
@pytest.mark.filterwarnings("ignore:.*PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_shipped(layout: torch.layout) -> None:
    parts = [torch.arange(3.0), torch.arange(5.0)]
    arrived = shipped(torch.nested.nested_tensor(parts, layout=layout))
    assert arrived.layout == layout
    assert all(torch.equal(one, two) for one, two in zip(arrived.unbind(), parts, strict=True))


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning", "ignore:.*TypedStorage is deprecated")
def test_quantized_tensors_are_shipped() -> None:
    tensor = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.quint8)
    arrived = shipped(tensor)
    assert torch.equal(arrived.dequantize(), tensor.dequantize())


def test_meta_tensors_are_shipped() -> None:
    arrived = shipped(torch.empty(5, 4, device="meta"))
    assert (arrived.device.type, tuple(arrived.shape)) == ("meta", (5, 4))


def test_subclasses_are_shipped_with_their_attributes() -> None:
    arrived = shipped(named())
    assert (type(arrived), arrived.label) == (Named, "six")
    assert arrived.tolist() == list(range(6))


def test_a_subclass_without_memory_is_shipped_by_its_own_reduction() -> None:
    arrived = shipped(Wrapping(torch.arange(6.0)))
    assert type(arrived) is Wrapping
    assert arrived.inner.tolist() == list(range(6))


def test_shared_memory_inside_a_sparse_tensor_stays_shared() -> None:
    values = torch.arange(3.0).share_memory_()
    tensor = torch.sparse_coo_tensor(torch.arange(3)[None], values, (3,), is_coalesced=True, check_invariants=False)
    arrived = shipped(tensor)
    values[0] = 7
    assert arrived.to_dense().tolist() == [7, 1, 2]


def test_read_only_arrays_of_foreign_byte_order_are_shipped_as_by_plain_pickle() -> None:
    held = np.frombuffer(bytes(100_000), np.uint8)
    foreign = np.arange(9_000, dtype=">i4")
    arrived, native = shipped([held, foreign])
    arrived[0] = 1
    assert (held[0], arrived[0], native.dtype.isnative) == (0, 1, True)
    assert np.array_equal(native, foreign)


@pytest.mark.parametrize("size", [COMPARED, COMPARED + 1, 3 * COMPARED - 1])
def test_a_byte_that_changed_anywhere_is_noticed(size: int) -> None:
    array = np.zeros(size, np.uint8)
    packed = PackedObject(array)
    for place in (0, COMPARED - 1, size - 1):
        array[place] = 1
        assert not packed.holds(array)
        array[place] = 0
    assert packed.holds(array)


LARGE = 64 << 10
"""Bytes from which on pickle hands over bytes as the object that they are; one keeps its hash."""


@pytest.mark.parametrize("size", [3, SMALL, LARGE - 1, LARGE, 3 * LARGE])
@pytest.mark.parametrize("kind", [bytes, bytearray, str])
def test_other_bytes_in_a_list_are_noticed_and_equal_ones_are_not(kind: Any, size: int) -> None:
    def made(last: str) -> Any:
        text = "a" * (size - 1) + last
        return text if kind is str else kind(text.encode())

    rows = [made("b") for _ in range(3)]
    packed = PackedObject({"rows": rows})
    for _ in range(2):
        assert packed.holds({"rows": rows})
    assert packed.holds({"rows": [made("b") for _ in range(3)]})
    rows[1] = made("c")
    assert not packed.holds({"rows": rows})
    assert not packed.holds({"rows": rows[:2]})
    rows[1] = made("b")
    assert packed.holds({"rows": rows})


def test_arrays_that_came_went_or_changed_places_are_noticed() -> None:
    arrays = [np.full(9_000, number, np.uint8) for number in range(3)]
    packed = PackedObject(arrays)
    assert packed.holds(arrays)
    for other in (arrays[:2], [*arrays, arrays[0].copy()], arrays[::-1], [*arrays[:2], arrays[2][:-1]], []):
        assert not packed.holds(other)
    assert packed.holds([array.copy() for array in arrays])


def test_an_object_is_compared_no_further_than_to_the_first_array_that_differs() -> None:
    class Late:
        pickled = 0

        def __reduce__(self) -> Any:
            Late.pickled += 1
            return int, ()

    array = np.zeros(9_000, np.uint8)
    packed = PackedObject([array, Late()])
    array[7] = 1
    assert not packed.holds([array, Late()])
    assert Late.pickled == 1


def test_comparing_without_the_function_of_c_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_object, "_memcmp", None)
    test_a_byte_that_changed_anywhere_is_noticed(COMPARED + 1)
