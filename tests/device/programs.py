"""Random programs over the real arena: what a training loop may do with page-locked batches, in any order.

A worker makes batches, which come to the loop as leases. The loop copies some of them to the device, on one stream or
another, keeps them, writes to them, drops them (also while a copy is under way), and looks at what came to the device.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headrace.device.choice import page_lock_for
from headrace.shared_memory.arena import Arena, InboundRegion
from headrace.shared_memory.codec import EncodedBatch, buffers_in, decode, decode_unopened, encode
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.writer_memory import BufferLayout, WriterMemory
from headrace.testing import SimulatedAccelerator
from headrace.testing.accelerator import SimulatedEvent, SimulatedStream

STEPS = 40
FORKING = 0.1
"""Share of the programs that fork, which takes time."""

SIZES = (1, 300, 4096, 9_000, 20_000)

NOISE = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
"""What batches are cut from."""


@dataclass(eq=False)
class Held:
    """A batch that the loop holds: its tensors, what they shall be, and the copies of it that are under way."""

    tensors: Any
    """A list; or an `UnopenedBatch` of one."""
    expected: list[bytes]
    copies: list[SimulatedEvent] = field(default_factory=list)


class Child:
    """A forked child that does nothing until it is ended."""

    def __init__(self) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            while True:
                signal.pause()

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


class Worker:
    """A worker and the loop's side of it, in one process: each has its own mapping of the same memory."""

    def __init__(self, arena: Arena, lock: PageLock, layout: BufferLayout) -> None:
        self.arena = arena
        self.layout = layout
        self.region: InboundRegion = arena.borrow(lock)
        self.memory: WriterMemory = self.region.ticket(layout).writer()

    def make(self, chance: random.Random, *, unopened: bool = False) -> Held:
        """Makes a batch, as collation does or as a user's own does, and takes it in."""
        self.memory.give_back(self.region.returned())
        sizes = [chance.choice(SIZES) for _ in range(chance.randint(1, 4))]
        batch = []
        for size in sizes:
            if chance.random() < 0.7 and size >= self.memory.smallest:
                tensor = self.memory.empty((size,), torch.uint8)
            else:
                tensor = torch.empty(size, dtype=torch.uint8)
            start = chance.randrange(len(NOISE) - size)
            tensor.numpy()[:] = NOISE[start : start + size]
            batch.append(tensor)

        expected = [tensor.numpy().tobytes() for tensor in batch]
        encoded = encode((batch, None), self.memory)
        del tensor, batch
        self.memory.finish({slot for slot, _ in encoded.slots})
        return Held(_taken_in(encoded, self.region, unopened=unopened), expected)

    def die(self) -> Worker:
        """Returns the worker that takes its place: it writes to the same region."""
        self.arena.give_back(self.region)
        return Worker(self.arena, self.region.page_lock, self.layout)  # type: ignore[arg-type]  # it has one


def _taken_in(encoded: EncodedBatch, region: InboundRegion, *, unopened: bool) -> Any:
    leases = [region.lease(slot, used) for slot, used in encoded.slots]
    region.hand_over([slot for slot, _ in encoded.slots])
    if unopened:
        return decode_unopened(encoded.header, leases, encoded.buffers)[0]
    return decode(encoded.header, buffers_in(leases, encoded.buffers))[0]


class Program:
    """One random program. `wrong` says what came out otherwise than it went in."""

    def __init__(self, seed: int, accelerator: SimulatedAccelerator) -> None:
        self.chance = random.Random(seed)
        self.accelerator = accelerator
        self.wrong: list[str] = []
        lock = page_lock_for(accelerator)
        assert lock is not None
        self.arena = Arena()
        layouts = list(BufferLayout)[1:]
        self.workers = [Worker(self.arena, lock, self.chance.choice(layouts)) for _ in range(self.chance.randint(1, 3))]
        self.streams: list[SimulatedStream] = [accelerator.stream()]
        self.streams += [accelerator.stream(new=True) for _ in range(self.chance.randint(0, 2))]
        self.held: list[Held] = []
        self.steps: list[Callable[[], None]] = [
            self.make, self.make, self.make, self.move, self.move, self.drop, self.drop,
            self.write, self.capture, self.replace,
        ]  # fmt: skip
        self.children: list[Child] = []
        if self.chance.random() < FORKING:
            self.steps += [self.fork, self.fork, self.end_child]

    def run(self) -> list[str]:
        """Runs it to its end. Returns what went wrong."""
        for _ in range(STEPS):
            self.chance.choice(self.steps)()
        self.held.clear()
        while self.children:
            self.end_child()
        if self.chance.random() < 0.5:
            self.accelerator.synchronize()
        self.workers.clear()
        self.arena = None  # type: ignore[assignment]  # its memory goes, perhaps while copies are under way
        self.accelerator.synchronize()
        left = self.accelerator.driver.registered
        if left:
            self.wrong.append(f"{len(left)} ranges are registered whose memory is gone")
        return self.wrong + self.accelerator.driver.faults

    def make(self) -> None:
        """A worker makes a batch."""
        held = self.chance.choice(self.workers).make(self.chance)
        self._compare(held, "as it came")
        if not all(self.accelerator._is_pinned(tensor) for tensor in held.tensors):
            self.wrong.append("a tensor is not page-locked")
        self.held.append(held)

    def move(self) -> None:
        """The loop copies a batch to the device and computes with it, on some stream."""
        if not self.held:
            return
        held = self.chance.choice(self.held)
        stream = self.chance.choice(self.streams)
        with self.accelerator.using(stream):
            for tensor, expected in zip(held.tensors, held.expected, strict=True):
                moved = self.accelerator.moved(tensor)
                self.accelerator.seen(moved, lambda found, expected=expected: self._seen(found, expected))
            event = self.accelerator.event(stream)
        assert event is not None
        held.copies.append(event)
        if self.chance.random() < 0.6:
            self.held.remove(held)

    def drop(self) -> None:
        """The loop lets a batch go."""
        if self.held:
            held = self.held.pop(self.chance.randrange(len(self.held)))
            self._compare(held, "when it was dropped")

    def write(self) -> None:
        """The loop writes to a batch of its own, once its copies are done."""
        if not self.held:
            return
        held = self.chance.choice(self.held)
        for event in held.copies:
            event.synchronize()
        for number, tensor in enumerate(held.tensors):
            array = tensor.numpy()
            array += 1
            held.expected[number] = tensor.numpy().tobytes()

    def capture(self) -> None:
        """A batch is dropped and another one made while a stream records a graph."""
        with self.accelerator.capturing():
            self.drop()
            self.make()

    def fork(self) -> None:
        """The process forks a child, which may look at all batches that the loop holds."""
        self.children.append(Child())

    def end_child(self) -> None:
        """A child ends."""
        if self.children:
            self.children.pop(self.chance.randrange(len(self.children))).end()

    def replace(self) -> None:
        """A worker dies, and another one writes to its memory."""
        number = self.chance.randrange(len(self.workers))
        self.workers[number] = self.workers[number].die()

    def _compare(self, held: Held, when: str) -> None:
        for tensor, expected in zip(held.tensors, held.expected, strict=True):
            if tensor.numpy().tobytes() != expected:
                self.wrong.append(f"a batch had other bytes {when}")

    def _seen(self, found: bytes, expected: bytes) -> None:
        if found != expected:
            self.wrong.append("the device saw other bytes")
