"""Whatever a batch is made of, it arrives as it was."""

from __future__ import annotations

import collections
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.shared_memory.arena import Arena
from headrace.shared_memory.codec import decode, dumps, encode
from headrace.shared_memory.memory import Bytes
from headrace.shared_memory.writer_memory import SMALL, WriterMemory

LARGE = SMALL // 4 + 100
"""Elements of four bytes that do not fit in a header."""

Pair = collections.namedtuple("Pair", "left right")
DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


class Wire:
    """A writer and a reader of one region, in one process."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.region = self.arena.borrow()
        self.memory: WriterMemory = self.region.ticket().writer()

    def send(self, value: object) -> Any:
        encoded = encode(value, self.memory)
        self.memory.finish({slot for slot, _ in encoded.slots})
        leases: list[Bytes] = [self.region.lease(slot, used) for slot, used in encoded.slots]
        buffers = [leases[index][start : start + nbytes] for index, start, nbytes in encoded.buffers]
        return decode(encoded.header, buffers)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        return alike and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
    tensor = torch.arange(int(np.prod(shape)), dtype=torch.float64).sin().mul(100).reshape(shape).to(dtype)
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    return tensor.repeat(draw(st.sampled_from([1, 1, 40])), *[1] * (tensor.dim() - 1)) if tensor.dim() else tensor


array_dtypes = hnp.scalar_dtypes().map(lambda dtype: dtype.newbyteorder("="))  # pickle keeps no other byte order
leaves = st.one_of(
    tensors(),
    hnp.arrays(array_dtypes, hnp.array_shapes(max_dims=3, max_side=20)),
    st.integers(), st.text(), st.binary(max_size=40_000), st.none(), st.booleans(),
)  # fmt: skip
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(batches)
def test_any_nesting_of_tensors_arrays_and_values_arrives_equal(batch: Any) -> None:
    assert same(Wire().send(batch), batch)


@pytest.mark.parametrize("size", [0, 1, SMALL // 4 - 1, LARGE, 100_000])
def test_a_tensor_arrives_writable_and_apart_from_the_original(wire: Wire, size: int) -> None:
    original = torch.arange(size, dtype=torch.float32)
    arrived = wire.send(original)
    arrived += 1
    assert torch.equal(arrived, torch.arange(size, dtype=torch.float32) + 1)
    assert torch.equal(original, torch.arange(size, dtype=torch.float32))


@pytest.mark.parametrize("size", [10, LARGE])
def test_views_of_one_tensor_share_memory_afterwards(wire: Wire, size: int) -> None:
    whole = torch.zeros(size)
    first, second = wire.send([whole, whole[2:5]])
    first[3] = 7.0
    assert second[1] == 7.0


def test_an_expanded_tensor_is_not_blown_up(wire: Wire) -> None:
    arrived = wire.send(torch.arange(3.0).expand(1_000_000, 3))
    assert arrived.shape == (1_000_000, 3)
    assert arrived.untyped_storage().nbytes() == 12
    assert torch.equal(arrived[999_999], torch.arange(3.0))


def test_a_small_piece_of_a_large_tensor_travels_alone(wire: Wire) -> None:
    large = torch.arange(10_000_000)
    pieces = large[5:8], large.view(1000, 10_000)[:, 3], large[100:100_000]
    arrived = wire.send(list(pieces))
    assert all(torch.equal(piece, copy) for piece, copy in zip(pieces, arrived, strict=True))
    assert sum(copy.untyped_storage().nbytes() for copy in arrived) < 1_000_000


def test_what_collation_wrote_into_a_slot_is_not_copied_again(wire: Wire) -> None:
    collated = wire.memory.empty((LARGE,), torch.float32).fill_(3.0)
    address = collated.data_ptr()
    encoded = encode({"x": collated}, wire.memory)
    (slot, used), *others = encoded.slots
    found = wire.memory.find(address)
    assert found == (slot, 0)
    assert (used, others) == (collated.nbytes, [])


def test_numpy_pieces_of_a_collated_tensor_share_its_slot(wire: Wire) -> None:
    collated = wire.memory.empty((2 * LARGE,), torch.float32).copy_(torch.arange(2.0 * LARGE))
    array = collated.numpy()
    encoded = encode([array[:LARGE], array[LARGE:]], wire.memory)
    assert len(encoded.slots) == 1
    assert [start for _, start, _ in encoded.buffers] == [0, 4 * LARGE]


def test_subclasses_parameters_and_unusual_layouts_arrive(wire: Wire) -> None:
    values = torch.randn(20, 300)
    parameter = wire.send(torch.nn.Parameter(values))
    sparse = wire.send(values.to_sparse())
    conjugate = wire.send(torch.view_as_complex(values.view(20, 150, 2)).conj())
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad
    assert torch.equal(parameter, values)
    assert torch.equal(sparse.to_dense(), values)
    assert torch.equal(conjugate, torch.view_as_complex(values.view(20, 150, 2)).conj())


def test_gradients_do_not_cross_processes(wire: Wire) -> None:
    leaf = torch.ones(3, requires_grad=True)
    assert wire.send(leaf).requires_grad
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        wire.send(leaf * 2)


def test_a_message_without_slots_holds_everything() -> None:
    index = [torch.tensor([1, 2]), np.arange(100_000), (3, "key")]
    arrived = decode(dumps(index), [])
    assert same(arrived, index)


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("length", [4, LARGE])
@pytest.mark.parametrize(
    "make",
    [
        lambda length: read_only(np.arange(length)),
        lambda length: np.frombuffer(bytes(range(256)) * length, np.uint8),
        lambda length: read_only(np.asfortranarray(np.arange(4 * length).reshape(4, length))),
        lambda length: np.broadcast_to(np.float32(3), (2, length)),
        lambda length: read_only(np.zeros(length, [("a", ">i4"), ("b", "<f4")])),
    ],
    ids=["read-only", "of bytes", "Fortran's order", "broadcast", "structured"],
)
def test_a_read_only_array_arrives_writable_as_by_plain_pickle(wire: Wire, make: Any, length: int) -> None:
    array = make(length)
    one, other = wire.send([array, array])
    assert one is other
    assert same(one, array)
    assert one.flags.writeable
    assert one.flags.f_contiguous == pickle.loads(pickle.dumps(array, 4)).flags.f_contiguous
    one[...] = 0
    assert not array.flags.writeable


def test_an_array_whose_dtype_names_the_byte_order_of_the_machine_arrives() -> None:
    named = np.dtype("f8").newbyteorder("<" if sys.byteorder == "little" else ">")
    array = np.array([1.0, 2.0], named)
    assert array.dtype.byteorder in "<>"
    arrived = pickle.loads(dumps(array))
    assert array.tolist() == arrived.tolist()


@pytest.mark.parametrize("length", [4, LARGE])
@pytest.mark.parametrize("dtype", [">i4", ">f8", ">M8[s]", ">U3"])
def test_an_array_of_foreign_byte_order_arrives_in_the_machines_as_by_plain_pickle(
    wire: Wire, dtype: str, length: int
) -> None:
    array = np.arange(length).astype(dtype)
    arrived = wire.send(array)
    plain = pickle.loads(pickle.dumps(array, 4))
    assert arrived.dtype.isnative
    assert arrived.dtype == plain.dtype
    assert np.array_equal(arrived, array)
