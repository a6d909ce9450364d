"""Requests as bytes: what is packed in Python's own types, and what needs pickle's help, comes out as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.batches.index import Careful, Positioned
from headrace.shared_memory.codec import dumps
from headrace.shared_memory.memory import Slot
from headrace.workers.processes.messages import InSlot, Request
from headrace.workers.processes.plain_requests import packed_request, unpacked_request

KEYS = st.one_of(
    st.lists(st.integers(-(2**70), 2**70), max_size=5),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda keys: np.array(keys, np.int64)),
)
SINGLE = st.one_of(st.integers(), st.text(max_size=3))


def same(one: Any, other: Any) -> bool:
    """Whether two indices are the same, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Positioned):
        return same(one.index, other.index) and same(one.positions, other.positions)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def way(request: Request) -> Request:
    """A request, packed and unpacked."""
    found = unpacked_request(packed_request(request))
    assert isinstance(found, Request)
    return found


@given(st.lists(st.one_of(KEYS, SINGLE), max_size=4), st.data())
def test_requests_come_out_as_they_were(indices: list[Any], data: st.DataObject) -> None:
    tasks = []
    for number, index in enumerate(indices):
        count = len(index) if isinstance(index, (list, np.ndarray)) else 1
        start, step = data.draw(st.integers(0, 2**40)), data.draw(st.integers(1, 4))
        places = range(start, start + count * step, step)
        kinds: list[Any] = [index, Positioned(index, places), Positioned(index, np.array(places, np.int64))]
        kinds.append(Positioned(index, list(places)))  # type: ignore[arg-type]
        tasks.append((number, number % 3, data.draw(st.sampled_from(kinds))))
    request = Request(4, None, tasks, [Slot(0, 4096, 8192)], False, [7, 8])
    found = way(request)
    assert (found.epoch, found.begin, found.stop, list(found.void)) == (4, None, False, [7, 8])
    assert found.returned == request.returned
    assert all(isinstance(slot, Slot) for slot in found.returned)
    assert [task[:2] for task in found.tasks] == [task[:2] for task in tasks]
    assert all(same(one[2], other[2]) for one, other in zip(found.tasks, tasks, strict=True))


@pytest.mark.parametrize(
    "index",
    [
        Careful([1, 2]),
        [(1, 2), (3, 4)],
        [1.5],
        [True, False],
        torch.arange(3),
        np.arange(3, dtype=np.int32),
        np.arange(6).reshape(2, 3),
        np.array(["a"], object),
        b"bytes",
        bytearray(b"12345678"),
        {"a": 1},
        None,
    ],
    ids=lambda index: type(index).__name__,
)
def test_other_indices_come_out_as_they_were(index: Any) -> None:
    for given_index in (index, Positioned(index, range(4, 6))):
        found = way(Request(0, None, [(0, 0, [1]), (1, 1, given_index)], [], False))
        assert same(found.tasks[1][2], given_index)
        assert found.tasks[0] == (0, 0, [1])


def test_arrays_of_keys_can_be_written_to() -> None:
    (task,) = way(Request(0, None, [(0, 0, np.arange(3))], [], False)).tasks
    task[2][0] = 9
    assert task[2].tolist() == [9, 1, 2]


def test_the_end_and_what_lies_in_a_slot_come_out_as_they_were() -> None:
    assert way(Request(0, None, [], [], True)).stop
    assert unpacked_request(dumps(InSlot(Slot(0, 0, 4096), 5))) == InSlot(Slot(0, 0, 4096), 5)
