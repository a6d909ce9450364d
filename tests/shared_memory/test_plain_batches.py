"""Plain batches take the short way, and arrive as they were; all others are pickled."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.plain_tensors import DTYPES
from headrace.shared_memory.codec import PLAIN, encode
from headrace.shared_memory.memory import Slot
from headrace.shared_memory.writer_memory import SMALL
from headrace.telemetry.stopwatch import NO_TIMES
from headrace.workers.processes.messages import InSlot, Result, packed, unpacked

from .test_codec import LARGE, Wire, same

Pair = collections.namedtuple("Pair", "left right")


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire()


def is_plain(wire: Wire, batch: object) -> bool:
    encoded = encode(batch, wire.memory)
    wire.memory.finish(set())
    return encoded.header[:1] == PLAIN


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0,), (3,), (2, 0, 4), (2, 3), (LARGE,), (5, LARGE // 4)]))
    return (torch.arange(int(np.prod(shape))) % 100).reshape(shape).to(dtype)


values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary()
batches = st.recursive(
    values | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(batch=batches)
def test_a_plain_batch_arrives_as_it_was(wire: Wire, batch: Any) -> None:
    assert is_plain(wire, batch)
    assert same(wire.send(batch), batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_lies_in_a_slot_is_not_copied(wire: Wire, dtype: torch.dtype) -> None:
    tensor = wire.memory.empty((LARGE, 2), dtype)
    tensor.copy_((torch.arange(2 * LARGE) % 100).reshape(LARGE, 2).to(dtype))
    encoded = encode({"x": tensor}, wire.memory)
    assert len(encoded.header) < 200
    assert encoded.buffers == [(0, 0, tensor.nbytes)]
    wire.memory.finish(set())


def shared_storage() -> Any:
    whole = torch.arange(10)
    return [whole, whole[2:4]]


def listed_twice() -> Any:
    inner = [torch.arange(3)]
    return [inner, inner]


def same_tensor_twice() -> Any:
    tensor = torch.arange(LARGE)
    return {"a": tensor, "b": tensor}


OTHERS: dict[str, Any] = {
    "tensors that share memory": shared_storage,
    "a list that lies in it twice": listed_twice,
    "a tensor that lies in it twice": same_tensor_twice,
    "an array": lambda: {"x": np.arange(3)},
    "a named tuple": lambda: Pair(torch.arange(3), 1),
    "another dictionary": lambda: collections.OrderedDict(x=torch.arange(3)),
    "other keys": lambda: {True: torch.arange(3)},
    "a gradient": lambda: [torch.zeros(3, requires_grad=True)],
    "gaps": lambda: [torch.arange(10)[::2]],
    "columns first": lambda: [torch.arange(6).reshape(2, 3).t()],
    "a part of a storage": lambda: [torch.arange(10)[:4]],
    "a parameter": lambda: [torch.nn.Parameter(torch.zeros(2))],
    "conjugated numbers": lambda: [torch.zeros(2, dtype=torch.complex64).conj()],
    "sparse": lambda: [torch.eye(3).to_sparse()],
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_plain_is_pickled(wire: Wire, case: str) -> None:
    batch = OTHERS[case]()
    assert not is_plain(wire, batch)
    arrived = wire.send(batch)
    assert type(arrived) is type(batch)


def test_what_was_one_object_is_one_object(wire: Wire) -> None:
    one, other = wire.send(listed_twice())
    assert one is other
    both = wire.send(same_tensor_twice())
    both["a"][0] = 77
    assert both["b"][0] == 77


def test_small_tensors_belong_to_the_user(wire: Wire) -> None:
    first = wire.send([torch.arange(3)])[0]
    second = wire.send([torch.arange(3)])[0]
    first += 1
    assert second.tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [SMALL - 1, SMALL])
def test_small_tensors_lie_in_the_header(wire: Wire, size: int) -> None:
    encoded = encode(torch.zeros(size, dtype=torch.uint8), wire.memory)
    assert bool(encoded.buffers) == (size >= SMALL)
    wire.memory.finish(set())


def test_results_are_the_same_behind_a_message() -> None:
    slot = Slot(1, 4096, 8192)
    results = [
        Result(3, 7, "batch", b"header", [(slot, 100)], [(0, 1, 2)], 5, [slot], NO_TIMES._replace(begun=1.0), []),
        Result(3, 8, "error", InSlot(slot, 9), [], [], 5, [], NO_TIMES, [("read", "here", 2)], True),
    ]
    arrived = unpacked(packed(results))
    assert repr(arrived) == repr(results)
    assert type(arrived[0].slots[0][0]) is type(arrived[0].freed[0]) is Slot
