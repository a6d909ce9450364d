"""Memory of large results is used again, and never while somebody sees it."""

from __future__ import annotations

import pickle
import threading

import torch

from headrace.core.process.reused_memory import KEPT, SMALLEST, ReusedMemory

COUNT = SMALLEST // 4


def test_memory_is_used_again_once_nobody_sees_it() -> None:
    memory = ReusedMemory()
    first = memory.empty((2, COUNT), torch.float32)
    place = first.data_ptr()
    part = first[1, 5:]
    del first
    assert memory.empty((2, COUNT), torch.float32).data_ptr() != place
    del part
    places = {memory.empty((2, COUNT), torch.float32).data_ptr() for _ in range(KEPT)}
    assert place in places


def test_results_that_are_kept_stay_what_they_are() -> None:
    memory = ReusedMemory()
    kept = [memory.empty((COUNT,), torch.float32).fill_(number) for number in range(6)]
    assert [tensor.unique().tolist() for tensor in kept] == [[number] for number in range(6)]
    arrays = [tensor.numpy() for tensor in kept]
    del kept
    memory.empty((COUNT,), torch.float32).fill_(9)
    assert [float(array.max()) for array in arrays] == [0, 1, 2, 3, 4, 5]


def test_no_more_than_two_pieces_are_kept_and_none_that_is_far_too_large() -> None:
    memory = ReusedMemory()
    many = [memory.empty((8 * COUNT,), torch.float32) for _ in range(5)]
    del many
    assert len(memory._free) == KEPT
    assert memory.empty((COUNT,), torch.float32).untyped_storage().nbytes() == SMALLEST
    assert max(block.size for block in memory._free) == 8 * SMALLEST
    small = memory.empty((7 * COUNT,), torch.float32)
    assert (small.shape, small.dtype) == ((7 * COUNT,), torch.float32)


def test_threads_get_memory_of_their_own() -> None:
    memory = ReusedMemory()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            tensor = memory.empty((COUNT,), torch.float32).fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_copy_begins_without_memory() -> None:
    memory = ReusedMemory()
    memory.empty((COUNT,), torch.float32)
    assert len(memory._free) == 1
    assert len(pickle.loads(pickle.dumps(memory))._free) == 0
