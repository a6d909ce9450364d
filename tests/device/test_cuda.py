"""The same on a real GPU. All of it is skipped where there is none."""

from __future__ import annotations

import gc
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import headrace
from headrace.device.choice import accelerator_for, page_lock_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Noise(Dataset[Any]):
    """Large and small tensors that follow from the key."""

    def __init__(self, length: int = 200) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        rng = np.random.default_rng(key)
        return {"image": torch.from_numpy(rng.integers(0, 256, (3, 128, 128), np.uint8)), "label": key}


def expected(batch_size: int) -> list[int]:
    """The sum of the bytes of each batch of images."""
    return [int(batch["image"].sum()) for batch in headrace.DataLoader(Noise(), batch_size)]


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
def test_slots_are_page_locked(num_workers: int) -> None:
    accelerator = accelerator_for(torch.device("cuda"))
    assert accelerator is not None
    lock = page_lock_for(accelerator)
    assert lock is not None
    for batch in headrace.DataLoader(Noise(), 8, num_workers=num_workers, pin_memory=True):
        assert batch["image"].is_pinned()
        assert batch["label"].is_pinned()
        assert lock.refused or lock.range_of(batch["image"].data_ptr(), batch["image"].nbytes) is not None


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_may_be_dropped_while_it_is_copied(num_workers: int) -> None:
    stream = torch.cuda.Stream()
    sums = []
    for _ in range(5):
        for batch in headrace.DataLoader(Noise(), 8, num_workers=num_workers, pin_memory=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                moved = batch["image"].to("cuda", non_blocking=True)
                sums.append(moved.sum())
            del batch, moved
    assert [int(one) for one in sums] == 5 * expected(8)


@pytest.mark.quick
@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"num_workers": 2, "ahead": 3}])
def test_random_steps_see_what_was_sent(how: dict[str, Any]) -> None:
    chance = random.Random(5)
    kept: list[tuple[torch.Tensor, int]] = []
    right = expected(8)
    loader = headrace.DataLoader(Noise(), 8, device="cuda", **how)
    for _ in range(4):
        for batch, checksum in zip(loader, right, strict=True):
            if chance.random() < 0.3:
                torch.cuda._sleep(1_000_000)
            assert batch["image"].is_cuda
            kept.append((batch["image"].sum() if chance.random() < 0.5 else batch["image"], checksum))
            if len(kept) > 8:
                found, wanted = kept.pop(chance.randrange(len(kept)))
                assert int(found.sum()) == wanted
    assert all(int(found.sum()) == wanted for found, wanted in kept)


def test_memory_does_not_grow_from_epoch_to_epoch() -> None:
    loader = headrace.DataLoader(Noise(), 8, num_workers=2, device="cuda")
    reserved = []
    for _ in range(4):
        for _ in loader:
            pass
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[1]


def test_a_graph_reads_the_next_batch_at_the_same_address() -> None:
    dataset = TensorDataset(torch.arange(3200.0).view(32, 100))
    loader = headrace.DataLoader(dataset, 4, num_workers=1, device="cuda", fixed_addresses=True)
    graph = torch.cuda.CUDAGraph()
    total = torch.zeros((), device="cuda")
    sums = []
    for number, (batch,) in enumerate(loader):
        if number == 0:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                total.copy_(batch.sum())
        graph.replay()
        sums.append(float(total))
    assert sums == [float(part.sum()) for part in dataset.tensors[0].split(4)]


def test_recording_a_graph_is_not_broken_by_batches_that_are_dropped() -> None:
    iterator = iter(headrace.DataLoader(Noise(), 8, num_workers=2, pin_memory=True))
    batches = list(itertools.islice(iterator, 3))
    x = torch.ones(4, device="cuda")
    y = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x * 2)
        batches.clear()
        gc.collect()
    graph.replay()
    next(iterator)
    assert y.tolist() == [2.0] * 4


def test_transforms_draw_the_same_numbers_again() -> None:
    how: dict[str, Any] = {
        "seed": 3,
        "device": "cuda",
        "device_transform": lambda batch: torch.rand(len(batch["image"]), device="cuda"),
    }
    first = [batch.tolist() for batch in headrace.DataLoader(Noise(), 8, num_workers=2, **how)]
    torch.rand(5, device="cuda")
    assert [batch.tolist() for batch in headrace.DataLoader(Noise(), 8, **how)] == first


def test_the_report_knows_the_rate_of_the_bus() -> None:
    loader = headrace.DataLoader(Noise(), 20, num_workers=2, device="cuda")
    for _ in loader:
        pass
    torch.cuda.synchronize()
    copies = loader.stats.copies
    assert copies is not None
    assert 1e8 < copies.rate < 1e12
