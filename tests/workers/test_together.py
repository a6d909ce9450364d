"""Loaders beside, inside and after one another, in threads and forked children, share memory without a mix-up."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from headrace import DataLoader
from tests.belongings import Children
from tests.workers.datasets import Photos


def wrong_batches(loader: DataLoader[Any], epochs: int = 3) -> list[int]:
    """Returns the numbers of the batches that are not as `Photos` makes them, batches of four."""
    wrong = []
    for _ in range(epochs):
        kept = list(loader)
        for number, (images, labels) in enumerate(kept):
            expected = torch.arange(4) + 4 * number
            if not (torch.equal(labels, expected) and bool((images == expected.view(4, 1, 1, 1)).all())):
                wrong.append(number)
    return wrong


class Nested(Dataset[torch.Tensor]):
    """Each item is the sum over a loader of its own; the last inner batch is kept."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        inner = DataLoader(Photos(8), batch_size=4)
        self.kept = [images for images, _ in inner]
        return torch.stack([images[:, 0, 0, 0] + index for images in self.kept])


class CollatesInThreads(Dataset[Any]):
    """Each item is collated by four threads at once."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda n: default_collate([torch.full((9000,), float(n))] * 4), range(16)))


@pytest.mark.thorough
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_same_loader_works_in_a_parent_and_its_forked_child_at_once(num_workers: int) -> None:
    loader = DataLoader(Photos(64), batch_size=4, num_workers=num_workers)
    held = list(loader)
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # OpenMP's threads did not come along
        status = len(wrong_batches(loader)) + (0 if bool((held[3][0][1] == 13).all()) else 100)
        os._exit(min(status, 101))
    ours = wrong_batches(loader)
    assert (ours, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) == ([], 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loaders_work_in_threads_at_once(num_workers: int) -> None:
    shared = DataLoader(Photos(64), batch_size=4)
    loaders = [shared, shared, DataLoader(Photos(64), batch_size=4, num_workers=num_workers)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(wrong_batches, loaders)) == [[], [], []]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_set_may_use_a_loader_of_its_own(num_workers: int) -> None:
    batches = list(DataLoader(Nested(), batch_size=2, num_workers=num_workers))
    inner = torch.arange(8.0).view(2, 4)
    assert torch.equal(torch.cat(batches), torch.stack([inner + index for index in range(6)]))


def test_a_data_set_may_collate_in_threads_of_its_own() -> None:
    for item in DataLoader(CollatesInThreads(), batch_size=None, num_workers=1):
        assert [int(tensor[3, 8999]) for tensor in item] == list(range(16))
        assert all(bool((tensor == tensor[0, 0]).all()) for tensor in item)


def test_a_loader_may_be_used_in_a_thread_that_ends(children: Children) -> None:
    loader = DataLoader(Photos(16), batch_size=4, num_workers=1, persistent_workers=True)
    found: list[Any] = []
    workers = set()

    def run(it: DataLoader[Any]) -> None:
        found.append(wrong_batches(it, epochs=1))
        workers.update(worker.pid for worker in it._iterator._workers)

    for _ in range(2):
        thread = threading.Thread(target=run, args=(loader,))
        thread.start()
        thread.join()
    assert found == [[], []]
    assert len(workers) == 1  # it has not ended with the thread
    del loader, thread
    gc.collect()
    assert children() == []


class Outer(Dataset[tuple[int, int]]):
    """Uses a loader without workers in each sample, and tells which worker it is before and after."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        numbers = []
        for _ in range(2):
            info = get_worker_info()
            numbers.append(-1 if info is None else info.id)
            assert len(list(DataLoader(range(3), batch_size=1))) == 3  # type: ignore[arg-type]
        return numbers[0], numbers[1]


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_loader_in_a_worker_leaves_the_worker_what_it_is(backend: Any) -> None:
    loader = DataLoader(Outer(), batch_size=None, num_workers=2, backend=backend)
    assert [tuple(numbers) for numbers in loader] == [(0, 0), (1, 1), (0, 0), (1, 1)]
