"""Batches on their way to a device, as a property of random programs: each wait is needed, and all are there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from headrace.device.choice import page_lock_for
from headrace.device.transfer import Transfer, Transfers
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.shared_memory.writer_memory import BufferLayout
from headrace.testing import SimulatedAccelerator
from headrace.testing.accelerator import SimulatedStream
from tests.device.programs import STEPS, Held, Worker
from tests.device.test_arena_programs import CHUNK, CHUNKS, DEVICES

MOST = 500
"""Programs within which a mistake must be found."""

SIZES = (4096, 20_480)


class Loader:
    """A loader's side: a worker, the way to a device, and the batches that have set out."""

    def __init__(self, arena: Arena, accelerator: SimulatedAccelerator, memory: LockedMemory) -> None:
        lock = page_lock_for(accelerator)
        assert lock is not None
        self.accelerator = accelerator
        self.worker = Worker(arena, lock, BufferLayout.TOGETHER)
        self.transfers = Transfers(accelerator, lock, memory)
        self.ahead: list[tuple[Transfer, list[bytes]]] = []

    def begin(self, chance: random.Random) -> None:
        """Makes a batch, or has one that the user made, and has it set out."""
        if chance.random() < 0.7:
            held = self.worker.make(chance, unopened=chance.random() < 0.7)
        else:
            tensors = [torch.randint(256, (size,), dtype=torch.uint8) for size in chance.choices(SIZES, k=2)]
            held = Held(tensors, [tensor.numpy().tobytes() for tensor in tensors])
        self.ahead.append((self.transfers.begin(held.tensors), held.expected))

    def begin_epoch(self) -> None:
        """Begins an epoch: what had set out for the last one is dropped."""
        self.ahead.clear()


class Program:
    """One random program. `wrong` says what came out otherwise than it went in."""

    def __init__(self, seed: int, accelerator: SimulatedAccelerator) -> None:
        self.chance = random.Random(seed)
        self.devices = [accelerator]
        if self.chance.random() < 0.4:
            self.devices.append(accelerator.another())
        self.wrong: list[str] = []
        self.arena = Arena()
        lock = page_lock_for(accelerator)
        assert lock is not None
        self.memory = LockedMemory(lock)
        self.loaders = [self.new_loader() for _ in range(self.chance.randint(1, 2))]
        self.others = {device.index: device.stream(new=True) for device in self.devices}
        self.streams = len(accelerator.driver.streams)
        self.held: list[Any] = []
        self.own: list[Any] = []
        self.steps: list[Callable[[], None]] = [
            self.begin, self.begin, self.begin, self.deliver, self.deliver, self.deliver,
            self.drop, self.switch, self.compute, self.compute, self.look, self.begin_epoch, self.leave,
        ]  # fmt: skip

    def run(self) -> list[str]:
        """Runs it to its end. Returns what went wrong."""
        for _ in range(STEPS):
            self.chance.choice(self.steps)()
        machine = self.devices[0].driver
        if len(machine.streams) > self.streams + self.left_loaders:
            self.wrong.append("an epoch made a stream")
        self.held.clear()
        self.loaders.clear()
        self.arena = self.memory = None  # type: ignore[assignment]  # memory goes
        self.devices[0].synchronize()
        return self.wrong + machine.faults

    left_loaders = 0

    def new_loader(self) -> Loader:
        return Loader(self.arena, self.chance.choice(self.devices), self.memory)

    def begin(self) -> None:
        """A batch sets out ahead."""
        self.chance.choice(self.loaders).begin(self.chance)

    def deliver(self) -> None:
        """The loop gets a batch and computes with it."""
        loader = self.chance.choice(self.loaders)
        if not loader.ahead:
            loader.begin(self.chance)
        device = loader.accelerator
        stream = self.chance.choice([device.stream(), device.stream(), self.others[device.index]])
        transfer, expected = loader.ahead.pop(0)
        with device.using(stream):
            batch = loader.transfers.finish(transfer)
            for tensor, content in zip(batch, expected, strict=True):
                device.seen(tensor, lambda found, content=content: self._seen(found, content))
        if self.chance.random() < 0.4:
            self.held.append((device, stream, batch, expected))

    def switch(self) -> None:
        """The loop goes on on another stream. What it has, it uses on the stream on which it got it."""
        device = self.chance.choice(self.devices)
        before = device.stream()
        device._current = self.others[device.index]
        self.others[device.index] = before

    def drop(self) -> None:
        """The loop looks at a batch that it has kept, and lets it go."""
        if self.held:
            accelerator, stream, batch, expected = self.held.pop(self.chance.randrange(len(self.held)))
            with accelerator.using(stream):
                for tensor, content in zip(batch, expected, strict=True):
                    accelerator.seen(tensor, lambda found, content=content: self._seen(found, content))

    def compute(self) -> None:
        """The loop takes memory of its own, as large as batches are, and writes to it."""
        accelerator = self.chance.choice(self.devices)
        sizes = sorted({nbytes for (_, nbytes), free in accelerator._free.items() if free} or {256})
        tensor = accelerator.empty(self.chance.choice(sizes))
        content = self.chance.randbytes(tensor.numel())
        accelerator.write(tensor, content)
        self.own.append((accelerator, accelerator.stream(), tensor, content))

    def look(self) -> None:
        """The loop reads memory of its own, and lets it go."""
        if self.own:
            accelerator, stream, tensor, content = self.own.pop(self.chance.randrange(len(self.own)))
            with accelerator.using(stream):
                accelerator.seen(tensor, lambda found: self._seen(found, content))

    def begin_epoch(self) -> None:
        """An epoch is broken off, and another one begun."""
        self.chance.choice(self.loaders).begin_epoch()

    def leave(self) -> None:
        """A loader goes, while batches are under way, and another one comes."""
        number = self.chance.randrange(len(self.loaders))
        self.loaders[number] = self.new_loader()
        self.left_loaders += 1

    def _seen(self, found: bytes, expected: bytes) -> None:
        if found != expected:
            self.wrong.append("the device saw other bytes")


@pytest.mark.parametrize("device", DEVICES)
def test_batches_arrive_as_they_set_out(device: type[SimulatedAccelerator]) -> None:
    for seed in range(200):
        assert Program(seed, device(seed)).run() == [], f"program {seed}"


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("device", DEVICES)
def test_batches_arrive_as_they_set_out_in_10_000_programs(device: type[SimulatedAccelerator], chunk: int) -> None:
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        assert Program(seed, device(seed)).run() == [], f"program {seed}"


def _no_wait_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    event = Transfers._event

    def nothing(transfers: Transfers, stream: Any, **how: Any) -> Any:
        if stream is not transfers._stream:
            stream = transfers._stream  # an event of its own stream: no wait at all
        return event(transfers, stream, **how)

    patch.setattr(Transfers, "_event", nothing)


def _no_wait_behind_the_copy(patch: pytest.MonkeyPatch) -> None:
    finish = Transfers.finish

    def hasty(transfers: Transfers, transfer: Transfer) -> Any:
        transfer.arrived = None
        return finish(transfers, transfer)

    patch.setattr(Transfers, "finish", hasty)


def _blocks_that_nobody_gets_are_let_go(patch: pytest.MonkeyPatch) -> None:
    send = Transfers._send

    def careless(transfers: Transfers, *args: Any) -> Any:
        sent = send(transfers, *args)
        transfers._under_way.clear()
        return sent

    patch.setattr(Transfers, "_send", careless)


def _a_loader_goes_without_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transfers, "__del__", lambda transfers: None)


def _a_stream_for_each_epoch(patch: pytest.MonkeyPatch) -> None:
    def renew(loader: Loader) -> None:
        loader.ahead.clear()
        loader.transfers._stream = loader.accelerator.stream(new=True)

    patch.setattr(Loader, "begin_epoch", renew)


def _the_wrong_device(patch: pytest.MonkeyPatch) -> None:
    stream = SimulatedAccelerator.stream

    def of_the_first(accelerator: SimulatedAccelerator, *, new: bool = False) -> SimulatedStream:
        return stream(accelerator.devices[0], new=new)

    patch.setattr(SimulatedAccelerator, "stream", of_the_first)


def _another_stream_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedAccelerator, "lend", lambda accelerator, memory, stream: None)


MISTAKES = {
    "memory is used on another stream unsaid": _another_stream_is_not_told,
    "no wait before the copy": _no_wait_before_the_copy,
    "no wait behind the copy": _no_wait_behind_the_copy,
    "blocks that nobody gets are let go": _blocks_that_nobody_gets_are_let_go,
    "a loader goes without waiting": _a_loader_goes_without_waiting,
    "a stream for each epoch": _a_stream_for_each_epoch,
    "the wrong device": _the_wrong_device,
}


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    MISTAKES[mistake](monkeypatch)
    for seed in range(MOST):
        if Program(seed, SimulatedAccelerator(seed)).run():
            record_property("programs", seed + 1)
            return
    pytest.fail(f"{MOST} programs did not find the mistake")
