"""What forked processes see of their parent's batches is not written while they live."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import DataLoader
from tests.belongings import shared_memory
from tests.workers.datasets import Photos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


class Holding(torch.utils.data.Dataset[torch.Tensor]):
    """Holds batches of another loader, and looks at them when its own are made."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batches[index][:, 0, 0, 0].clone()


def images_of(loader: Any) -> list[torch.Tensor]:
    return [images for images, _ in loader]


def overwrite(loader: Any) -> None:
    """Writes to the memory of further batches."""
    kept = images_of(loader)
    for images in kept:
        images.fill_(-1)


@pytest.mark.parametrize("workers", [1, 2])
def test_forked_workers_see_the_batches_that_their_data_set_holds(workers: int) -> None:
    """Also when the parent lets go of them, and goes on with the loader that made them."""
    first = DataLoader(Photos(64, side=64), batch_size=4, num_workers=2, persistent_workers=True)
    dataset = Holding(images_of(first))
    second = iter(DataLoader(dataset, batch_size=1, num_workers=workers, multiprocessing_context="fork"))
    delivered = [next(second)]
    dataset.batches = []
    overwrite(first)
    delivered += second
    assert torch.cat(delivered).flatten().tolist() == list(range(64))


@pytest.mark.thorough
def test_persistent_workers_see_the_batches_that_their_data_set_holds_in_each_epoch() -> None:
    first = DataLoader(Photos(64, side=64), batch_size=4, num_workers=1, persistent_workers=True)
    dataset = Holding(images_of(first))
    length = list(range(16))
    second = DataLoader(
        dataset, batch_sampler=[[key] for key in length], num_workers=1,
        persistent_workers=True, multiprocessing_context="fork",
    )  # fmt: skip
    for _ in range(3):
        assert [batch[0, 0].item() for batch in second] == [4 * number for number in length]
        dataset.batches = []
        overwrite(first)


def test_a_child_sees_batches_whose_loader_is_gone_also_when_its_parent_drops_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So the pages of what comes back are given up at once, as those of very large batches are.
    monkeypatch.setattr("headrace.shared_memory.leases.HUGE", 1 << 20)
    loader = DataLoader(Photos(4, side=256), batch_size=4, num_workers=1, multiprocessing_context="fork")
    images, _ = next(iter(loader))
    seen = images[:, 0, 0, 0].tolist()
    del loader
    gc.collect()
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading_end, 1)
        os._exit(images[:, 0, 0, 0].tolist() != seen)
    del images
    gc.collect()
    os.write(writing_end, b"x")
    os.close(reading_end)
    os.close(writing_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def forked() -> int:
    """Forks a child that waits for a signal."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


@pytest.mark.thorough
def test_memory_that_a_forked_child_sees_comes_back_when_it_has_ended() -> None:
    """A fork with every batch, as of a program that starts a child now and then."""
    # With a sampler whose code is not known, workers make no more batches ahead where one is late.
    loader = DataLoader(Photos(160, side=256), batch_size=4, num_workers=2, sampler=list(range(160)))
    sizes, files = [], []
    for _ in range(6):
        for number, (images, _) in enumerate(loader):
            if number % 4 == 0:
                child = forked()
                assert images[0, 0, 0, 0] == 4 * number
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        sizes.append(shared_memory(loader))
        files.append(len(list(Path("/proc/self/fd").iterdir())))
    assert max(sizes) <= sizes[1] + (8 << 20)
    assert max(files[2:]) <= files[1]


@pytest.mark.thorough
def test_workers_that_are_forked_in_each_epoch_let_no_memory_pile_up() -> None:
    # The sampler is the user's: behind a late batch, workers would make more ahead, and the most that were ever needed
    # would count.
    loader = DataLoader(
        Photos(64, side=128), batch_size=4, num_workers=2, multiprocessing_context="fork", sampler=list(range(64))
    )
    sizes = []
    kept = None
    for _ in range(8):
        for images, _ in loader:
            kept = images
        sizes.append(shared_memory(loader))
    assert kept is not None
    assert max(sizes) <= sizes[2] + (1 << 20)
