"""`pin_memory=True`: the slots themselves are page-locked, as long as they are needed and as far as that is allowed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.device.choice import page_lock_for
from headrace.device.torch_accelerator import TorchAccelerator
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.writer_memory import BufferLayout
from headrace.testing import SimulatedAccelerator
from tests.device.programs import Worker


@pytest.fixture
def accelerator() -> Iterator[SimulatedAccelerator]:
    with SimulatedAccelerator(5) as simulated:
        yield simulated
        gc.collect()
        simulated.synchronize()
        assert simulated.driver.faults == []


class Images(Dataset[Any]):
    """Images, labels, and what small things samples have."""

    def __init__(self, length: int = 60) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        return torch.full((3, 50, 50), float(key)), key


def test_workers_batches_are_pinned_where_they_lie(accelerator: SimulatedAccelerator) -> None:
    before = threading.active_count()
    for images, labels in headrace.DataLoader(Images(), 6, num_workers=2, pin_memory=True):
        assert images.is_pinned()
        assert labels.is_pinned()
        assert images[:, 0, 0, 0].tolist() == labels.tolist()
        assert threading.active_count() == before
    assert accelerator.driver.pinned == []  # nothing was copied


def test_each_slot_is_registered_once(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(600), 6, num_workers=2, pin_memory=True, persistent_workers=True)
    for _ in range(4):
        for _ in loader:
            accelerator.synchronize()
    workers = loader._iterator.executor.pool.workers
    slots = sum(len(worker.region._known) for worker in workers)
    assert accelerator.driver.registrations <= slots < 400  # of 400 batches, each in two slots


def test_labels_that_are_kept_take_few_registrations(accelerator: SimulatedAccelerator) -> None:
    kept = list(headrace.DataLoader(range(600), 6, num_workers=2, pin_memory=True))
    assert len(kept) == 100
    assert accelerator.driver.registrations <= 4
    assert [int(label) for labels in kept for label in labels] == list(range(600))


def test_all_is_unlocked_when_loader_and_batches_are_gone(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(), 6, num_workers=2, pin_memory=True)
    kept = next(iter(loader))
    assert accelerator.driver.registered
    del loader
    gc.collect()
    assert kept[0].is_pinned()
    del kept
    gc.collect()
    assert accelerator.driver.registered == {}


def test_where_locking_is_refused_batches_are_copied_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.core.text.log_once._said", set())
    with SimulatedAccelerator(5, refuse_from=3) as accelerator:
        for _ in range(2):
            for images, labels in headrace.DataLoader(Images(), 6, num_workers=2, pin_memory=True):
                assert images.is_pinned()
                assert labels.is_pinned()
                assert images[:, 0, 0, 0].tolist() == labels.tolist()
        assert accelerator.driver.registrations == 3
        assert accelerator.driver.pinned
        found: list[bytes] = []
        for images, _ in headrace.DataLoader(Images(), 6, num_workers=2, device="cuda"):
            accelerator.seen(images, found.append)
        accelerator.synchronize()
        expected = [images.numpy().tobytes() for images, _ in headrace.DataLoader(Images(), 6)]
        assert found == expected
    assert caplog.text.count("was refused") == 1


class Runtime:
    """Stands for the CUDA runtime, which refuses the third registration."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.calls: list[tuple[int, int, int]] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.calls.append((address, nbytes, flags))
        if len(self.calls) == 3:
            return 2  # cudaErrorMemoryAllocation
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0 if self.registered.pop(address, None) else 713  # cudaErrorHostMemoryNotRegistered


def test_the_runtime_is_asked_for_whole_pages_and_a_refusal_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    cleared: list[Any] = []
    zeros = torch.zeros

    def kernel(*size: int, device: Any = None, **how: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "cuda":
            cleared.append(device)
            raise RuntimeError("CUDA error: out of memory")  # as torch tells the last error
        return zeros(*size, **how)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "zeros", kernel)
    accelerator = TorchAccelerator(torch.device("cuda", 0))
    monkeypatch.setattr(accelerator, "event", SimulatedAccelerator().event)
    lock = PageLock(accelerator)
    memory = LockedMemory(lock)
    batches = [memory.empty((300_000,), torch.uint8) for _ in range(5)]
    assert lock.refused
    assert len(runtime.calls) == 3
    assert all(nbytes % 4096 == 0 and address % 4096 == 0 and flags == 1 for address, nbytes, flags in runtime.calls)
    assert cleared == [torch.device("cuda", 0)]
    locked = [lock.range_of(batch.data_ptr(), batch.nbytes) is not None for batch in batches]
    assert locked == [True, True, False, False, False]
    del batches, memory
    gc.collect()
    assert runtime.registered == {}


def test_a_batch_that_a_child_sees_is_not_written_while_the_child_lives(accelerator: SimulatedAccelerator) -> None:
    lock = page_lock_for(accelerator)
    assert lock is not None
    memory = LockedMemory(lock)
    batch = memory.empty((50_000,), torch.uint8)
    batch.fill_(7)
    asks, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(asks[0], 1)
        os.write(answers[1], b"y" if batch.numpy().min() == batch.numpy().max() == 7 else b"n")
        os._exit(0)

    del batch
    for _ in range(5):
        memory.empty((50_000,), torch.uint8).fill_(9)
        accelerator.synchronize()
    os.write(asks[1], b"?")
    assert os.read(answers[0], 1) == b"y"
    os.waitpid(child, 0)
    for descriptor in (*asks, *answers):
        os.close(descriptor)


def test_after_a_fork_the_device_still_reads_what_the_parent_writes(accelerator: SimulatedAccelerator) -> None:
    from tests.device.pipe_accelerator import PipeAccelerator

    pipe = PipeAccelerator(3)
    lock = PageLock(pipe)
    memory = LockedMemory(lock)
    tensor = memory.empty((50_000,), torch.uint8)
    tensor.fill_(1)
    child = os.fork()
    if child == 0:
        os.read(0, 0)
        signal_end = os.environ.get("NOBODY")  # stays until the parent has written
        os._exit(0 if signal_end is None else 1)
    tensor.fill_(2)
    found: list[bytes] = []
    moved = pipe.moved(tensor)
    pipe.seen(moved, found.append)
    pipe.synchronize()
    os.waitpid(child, 0)
    assert found == [bytes([2]) * 50_000]


def test_a_forked_child_leaves_the_device_alone(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(), 6, device="cuda")
    batch = next(iter(loader))
    child = os.fork()
    if child == 0:
        asked = []
        accelerator.event = lambda *_, **__: asked.append(1)  # type: ignore[method-assign]
        accelerator.unregister = lambda *_: asked.append(1)  # type: ignore[method-assign]
        del loader, batch
        gc.collect()
        os._exit(len(asked))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(batch) == 2


@pytest.mark.thorough
def test_a_slot_that_a_forked_worker_saw_is_given_out_once() -> None:
    wrong = 0
    for seed in range(4):
        with SimulatedAccelerator(seed) as simulated:
            loader = headrace.DataLoader(Images(), batch_size=None, num_workers=2, pin_memory=True)
            for _ in range(5):  # the slots that workers of one epoch saw come back in the next
                for images, key in loader:
                    simulated.synchronize()
                    wrong += not bool((images == key).all())
    assert wrong == 0


def test_a_tensor_without_memory_of_its_own_is_left_to_torch(accelerator: SimulatedAccelerator) -> None:
    class Pinned(Exception):
        """Raised in the place of torch's pinning, which the simulation has for dense tensors only."""

    def refuse(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        raise Pinned

    with mock.patch.object(torch.Tensor, "pin_memory", refuse), pytest.raises(Pinned):
        list(headrace.DataLoader([torch.eye(3).to_sparse()], batch_size=None, pin_memory=True))


class Killing(Images):
    """Its sample 20 ends the worker that loads it, once."""

    def __init__(self, flag: Any) -> None:
        super().__init__()
        self.flag = flag

    def __getitem__(self, key: int) -> Any:
        if key == 20 and not self.flag.exists():
            self.flag.touch()
            os._exit(9)
        return super().__getitem__(key)


@pytest.mark.parametrize("how", [{"pin_memory": True}, {"device": "cuda"}])
def test_a_worker_that_dies_leaves_no_wrong_byte(how: Any, accelerator: SimulatedAccelerator, tmp_path: Any) -> None:
    found: list[bytes] = []
    for images, _ in headrace.DataLoader(Killing(tmp_path / "killed"), 6, num_workers=2, **how):
        moved = images if "device" in how else accelerator.moved(images)
        accelerator.seen(moved, found.append)
        del images, moved
    accelerator.synchronize()
    expected = [images.numpy().tobytes() for images, _ in headrace.DataLoader(Images(), 6)]
    assert found == expected


PROGRAM = """
import torch, headrace
from headrace.testing import SimulatedAccelerator

accelerator = SimulatedAccelerator(1).__enter__()
dataset = torch.utils.data.TensorDataset(torch.rand(400, 3000))
loader = headrace.DataLoader(dataset, 8, {how})
for number, (batch,) in enumerate(loader):
    kept = batch if {on_device} else accelerator.moved(batch)
    if number == 20:
        break
print("copies under way:", any(stream.work for stream in accelerator.driver.streams))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "on_device"),
    [("num_workers=2, device='cuda', persistent_workers=True", True), ("num_workers=2, pin_memory=True", False)],
)
def test_python_exits_while_copies_are_under_way(how: str, on_device: bool) -> None:
    program = textwrap.dedent(PROGRAM.format(how=how, on_device=on_device))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("copies under way:")


def test_a_graph_that_is_recorded_keeps_slots_until_it_is_done(accelerator: SimulatedAccelerator) -> None:
    lock = page_lock_for(accelerator)
    assert lock is not None
    worker = Worker(Arena(), lock, BufferLayout.TOGETHER)
    chance = __import__("random").Random(1)
    with accelerator.capturing():
        first = worker.make(chance)
        moved = [accelerator.moved(tensor) for tensor in first.tensors]
        expected = first.expected
        del first
        for _ in range(3):
            worker.make(chance)
    found: list[bytes] = []
    for tensor in moved:
        accelerator.seen(tensor, found.append)
    accelerator.synchronize()
    assert found == expected


def test_what_is_not_made_by_collation_is_pinned_by_torch(accelerator: SimulatedAccelerator) -> None:
    def collate(samples: list[Any]) -> Any:
        return {"one": torch.arange(3), "array": np.arange(3)}

    (batch,) = headrace.DataLoader(Images(4), 4, pin_memory=True, collate_fn=collate)
    assert batch["one"].is_pinned()
    assert isinstance(batch["array"], np.ndarray)
