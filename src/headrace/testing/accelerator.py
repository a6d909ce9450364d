"""An accelerator that does everything as late as it may: what goes wrong on a real one now and then goes wrong here."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import math
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from headrace.core.accelerator import Driver
from headrace.device import choice
from headrace.shared_memory.memory import address_of

FRESH = 0xA5
"""The bytes of device memory that nothing was written to."""

PACES = (1, 2, 2, 4)
"""How fast machines are: each call finds fewer pieces of work done than so many."""


class SimulatedEvent:
    """A place in the work of some streams."""

    def __init__(self, machine: _Machine, streams: list[SimulatedStream]) -> None:
        """streams: in which it is recorded."""
        self._machine = machine
        self.to_come = set(streams)
        self.over_at = math.nan

    def query(self) -> bool:
        """Tells whether all before it is done, after some time has passed. See `DeviceEvent.query`."""
        self._machine.let_time_pass()
        return not self.to_come

    def synchronize(self) -> None:
        """Waits until all before it is done."""
        while self.to_come:
            self._machine.work()

    def elapsed_since(self, earlier: SimulatedEvent) -> float:
        """See `DeviceEvent.elapsed_since`."""
        return self.over_at - earlier.over_at


class SimulatedStream:
    """Work that is done in order, at some time."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        self.work: deque[tuple[Callable[[], object], SimulatedEvent | None]] = deque()
        """Pieces of work, and for which event each of them waits."""
        machine.streams.append(self)

    def wait_event(self, event: SimulatedEvent) -> None:
        """Has what is asked of the stream from here on wait for an event."""
        self.ask(lambda: None, event)

    def ask(self, piece: Callable[[], object], behind: SimulatedEvent | None = None) -> None:
        """Asks for a piece of work. behind: the event for which it waits."""
        with self._machine.lock:
            self.work.append((piece, behind))
        self._machine.let_time_pass()

    def is_ready(self) -> bool:
        """Tells whether there is work that waits for nothing."""
        return bool(self.work) and (self.work[0][1] is None or not self.work[0][1].to_come)


class DeviceBlock(NamedTuple):
    """A piece of device memory: its address, and its bytes."""

    address: int
    data: bytearray


class _Machine(Driver):
    """What all simulated devices of one machine share."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.pace = self.chance.choice(PACES)
        self.streams: list[SimulatedStream] = []
        self.blocks: list[DeviceBlock] = []
        """All device memory there ever was, by its addresses."""
        self.registered: dict[int, int] = {}
        """Bytes of each range of page-locked memory, by their addresses."""
        self.pinned: list[torch.Tensor] = []
        self.registrations = 0
        self.copies = 0
        self.bytes_copied = 0
        self.devices: list[SimulatedAccelerator] = []
        self.faults: list[str] = []
        self.capturing = False
        self.refuse_from = sys.maxsize
        # Finalizers ask for events, at any moment.
        self.lock = threading.RLock()

    def let_time_pass(self) -> None:
        """Does some of the work that was asked for, perhaps none."""
        for _ in range(self.chance.randrange(self.pace)):
            if not self._do_one():
                return

    def work(self) -> None:
        """Does one piece of work. Raises RuntimeError where all that is left waits for ever."""
        if not self._do_one():
            raise RuntimeError("the streams of the simulated accelerator wait for each other")

    def _do_one(self) -> bool:
        with self.lock:
            ready = [stream for stream in self.streams if stream.is_ready()]
            if not ready:
                return False
            stream = self.chance.choice(ready)
            piece, _ = stream.work[0]
            piece()
            # Behind it, since a signal handler may raise in the middle: then the piece is done once more.
            stream.work.popleft()
        return True

    def block_of(self, address: int) -> DeviceBlock | None:
        """Returns the device memory that an address lies in."""
        place = bisect.bisect_right(self.blocks, address, key=lambda block: block.address) - 1
        if place < 0 or address >= self.blocks[place].address + len(self.blocks[place].data):
            return None
        return self.blocks[place]

    def is_registered(self, address: int, nbytes: int) -> bool:
        """Tells whether all of these bytes are page-locked, as one range."""
        return any(start <= address and address + nbytes <= start + size for start, size in self.registered.items())


class SimulatedAccelerator:
    """Stands in for the accelerator of this process, in a `with` block. Its memory is ordinary memory.

    Work is done late, and in any order between streams that do not wait for each other. A copy from page-locked memory
    reads its source when it is done. So a program that reuses memory too early gets wrong bytes, with a probability
    that many seeds make a certainty. Within the block, torch sees an accelerator, `pin_memory=True` and `device="cuda"`
    work, and `Tensor.pin_memory` gives memory that the simulation knows.

    `faults` lists what a real device would answer with an error or with silence: memory that was unregistered while a
    copy read it, or registered twice. Not thread-safe.

    Args:
        seed: of the order in which work is done.
        memory: bytes of the device; None: without limit.
        refuse_from: the number of the registration from which on all are refused, from 1.

    Examples:
        >>> from headrace.testing import SimulatedAccelerator
        >>> with SimulatedAccelerator(seed=1):
        ...     batches = list(headrace.DataLoader([1, 2, 3], pin_memory=True))
    """

    def __init__(self, seed: int = 0, *, memory: int | None = None, refuse_from: int | None = None) -> None:
        self.driver = _Machine(seed)
        if refuse_from is not None:
            self.driver.refuse_from = refuse_from
        self._begin(memory, 0)

    def _begin(self, memory: int | None, index: int) -> None:
        self.device = torch.device("cpu")
        self.index = index
        self.limit = memory
        self.allocated = 0
        """Bytes that are in use."""
        self.peak = 0
        """The most bytes that were in use at a time."""
        self._free: dict[tuple[SimulatedStream, int], list[DeviceBlock]] = {}
        self._borrowers: dict[int, set[SimulatedStream]] = {}
        """The streams that use memory of another one, by its address."""
        self._current = SimulatedStream(self.driver)
        self.driver.devices.append(self)
        self._patches = contextlib.ExitStack()

    @property
    def devices(self) -> list[SimulatedAccelerator]:
        """All devices of the machine, by their numbers."""
        return self.driver.devices

    def another(self, memory: int | None = None) -> SimulatedAccelerator:
        """Returns a further device of the same machine."""
        device = object.__new__(type(self))
        device.driver = self.driver
        device._begin(memory, self.index + 1)
        return device

    # -- what headrace asks of an accelerator --------------------------------------------------------------------------

    def stream(self, *, new: bool = False) -> SimulatedStream:
        """See `Accelerator.stream`."""
        if new:
            return SimulatedStream(self.driver)
        return self._current

    def event(self, stream: SimulatedStream | None = None, *, timed: bool = False) -> SimulatedEvent | None:
        """See `Accelerator.event`."""
        machine = self.driver
        if machine.capturing:
            return None

        with machine.lock:
            streams = [*machine.streams] if stream is None else [stream]
            event = SimulatedEvent(machine, streams)

            def passing(one: SimulatedStream) -> Callable[[], None]:
                def pass_by() -> None:
                    event.over_at = time.perf_counter()
                    event.to_come.discard(one)

                return pass_by

            for one in streams:
                one.work.append((passing(one), None))
        machine.let_time_pass()
        return event

    def empty(self, nbytes: int) -> torch.Tensor:
        """See `Accelerator.empty`. Memory that was freed last is given out first, at once, as torch does it."""
        stream = self._current
        free = self._free.setdefault((stream, nbytes), [])
        if self.limit is not None and self.allocated + nbytes > self.limit:
            raise torch.OutOfMemoryError(f"the simulated accelerator has {self.limit - self.allocated} bytes left")
        if free:
            block = free.pop()
        else:
            data = bytearray([FRESH]) * max(nbytes, 1)
            block = DeviceBlock(address_of(np.frombuffer(data, np.uint8)), data)
            bisect.insort(self.driver.blocks, block, key=lambda block: block.address)

        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)
        array = np.frombuffer(block.data, np.uint8, nbytes)
        borrowers = self._borrowers[block.address] = set()
        weakref.finalize(array, self._freed, free, block, nbytes, borrowers)
        return torch.from_numpy(array)

    def _freed(self, free: list[DeviceBlock], block: DeviceBlock, nbytes: int, borrowers: set[SimulatedStream]) -> None:
        """Memory was let go: it can be given out at once, or when the streams that borrowed it have come so far."""
        left = set(borrowers)

        def give_back() -> None:
            self.allocated -= nbytes
            free.append(block)

        def passing(one: SimulatedStream) -> Callable[[], None]:
            def pass_by() -> None:
                if left == {one}:
                    give_back()
                left.discard(one)

            return pass_by

        for stream in borrowers:
            stream.work.append((passing(stream), None))
        if not borrowers:
            give_back()

    def lend(self, memory: torch.Tensor, stream: SimulatedStream) -> None:
        """See `Accelerator.lend`."""
        block = self.driver.block_of(memory.data_ptr())
        if block is not None:
            self._borrowers[block.address].add(stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: SimulatedStream) -> None:
        """See `Accelerator.copy`."""
        machine = self.driver
        nbytes = source.numel()
        block = machine.block_of(target.data_ptr())
        if block is None or target.numel() != nbytes:
            raise ValueError("a copy goes to device memory of the same size")

        read = self._reader(source)
        place = target.data_ptr() - block.address
        data = block.data
        machine.copies += 1
        machine.bytes_copied += nbytes

        def run() -> None:
            data[place : place + nbytes] = read()

        stream.ask(run)

    def register(self, address: int, nbytes: int) -> bool:
        """See `Accelerator.register`."""
        machine = self.driver
        machine.registrations += 1
        if machine.registrations >= machine.refuse_from:
            return False
        for start, size in machine.registered.items():
            if start < address + nbytes and address < start + size:
                machine.faults.append("memory was registered that is registered already")
                return False
        machine.registered[address] = nbytes
        return True

    def unregister(self, address: int) -> None:
        """See `Accelerator.unregister`."""
        self.driver.registered.pop(address, None)

    def _reader(self, source: torch.Tensor) -> Callable[[], bytes | bytearray]:
        """Returns what gives the bytes of a source when a copy is done."""
        address, nbytes = source.data_ptr(), source.numel()
        machine = self.driver
        block = machine.block_of(address)
        if block is not None:
            place, data = address - block.address, block.data
            return lambda: data[place : place + nbytes]
        if not machine.is_registered(address, nbytes):
            now = ctypes.string_at(address, nbytes)
            return lambda: now

        def read() -> bytes:
            if not machine.is_registered(address, nbytes):
                machine.faults.append("a copy read memory that was unregistered meanwhile")
                return bytes(nbytes)
            return self.read_locked(address, nbytes)

        return read

    def read_locked(self, address: int, nbytes: int) -> bytes:
        """Returns what lies now at an address of page-locked memory."""
        return ctypes.string_at(address, nbytes)

    # -- what a training loop does -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self, stream: SimulatedStream) -> Iterator[None]:
        """Has the calling thread compute on a stream."""
        before = self._current
        self._current = stream
        try:
            yield
        finally:
            self._current = before

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Has a stream record a graph meanwhile, so that no event can be recorded."""
        self.driver.capturing = True
        try:
            yield
        finally:
            self.driver.capturing = False

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor on the device, as `tensor.to("cuda", non_blocking=True)` does: the copy comes later."""
        source = tensor.detach().contiguous().view(-1).view(torch.uint8)
        target = self.empty(source.numel())
        self.copy(target, source, self._current)
        return target.view(tensor.dtype).view(tensor.shape)

    def seen(self, tensor: torch.Tensor, then: Callable[[bytes], object]) -> None:
        """Has the current stream look at a tensor on the device, as a kernel does, and tell its bytes."""
        block = self.driver.block_of(tensor.data_ptr())
        if block is None:
            raise ValueError("the tensor does not lie on the device")
        if not _is_dense(tensor):
            raise ValueError(
                "the tensor has gaps, so its bytes are not its numbers: look at the one that it is a part of"
            )
        place = tensor.data_ptr() - block.address
        data, nbytes = block.data, tensor.nbytes
        self._current.ask(lambda: then(bytes(data[place : place + nbytes])))

    def write(self, tensor: torch.Tensor, data: bytes) -> None:
        """Has the current stream write to a tensor on the device, as a kernel does."""
        block = self.driver.block_of(tensor.data_ptr())
        if block is None or len(data) != tensor.nbytes:
            raise ValueError("the tensor does not lie on the device, or has another size")
        place = tensor.data_ptr() - block.address
        target = block.data

        def run() -> None:
            target[place : place + len(data)] = data

        self._current.ask(run)

    def synchronize(self) -> None:
        """Waits until all is done that was asked for."""
        while any(stream.work for stream in self.driver.streams):
            self.driver.work()

    # -- standing in ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> SimulatedAccelerator:
        accelerator = torch.accelerator
        self._patches.enter_context(mock.patch.object(choice, "stand_in", self))
        for name, value in {
            "is_available": lambda: True,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "device_count": lambda: len(self.devices),
            "current_device_index": lambda: 0,
            "set_device_index": lambda index: None,
            "current_stream": lambda *_: _NO_GRAPH,
        }.items():
            self._patches.enter_context(mock.patch.object(accelerator, name, value))
        for name, method in {"pin_memory": self._pinned, "is_pinned": self._is_pinned}.items():
            self._patches.enter_context(mock.patch.object(torch.Tensor, name, _as_method(method), create=True))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _pinned(self, tensor: torch.Tensor, device: object = None) -> torch.Tensor:
        """Returns a copy in memory of its own that is registered, or the tensor itself where it lies in such memory."""
        if self._is_pinned(tensor):
            return tensor
        if tensor.layout is not torch.strided:
            return tensor.clone()
        copy = tensor.clone(memory_format=torch.contiguous_format)
        if copy.nbytes:
            # Until the device has read it, torch keeps such memory as well. Here it stays.
            self.driver.registered[copy.data_ptr()] = copy.nbytes
            self.driver.pinned.append(copy)
        return copy

    def _is_pinned(self, tensor: torch.Tensor, device: object = None) -> bool:
        if tensor.layout is not torch.strided:
            return False
        return tensor.nbytes > 0 and self.driver.is_registered(tensor.data_ptr(), tensor.nbytes)


class _NoGraph:
    """A stream of torch's, as far as its optimizers and compiler ask for it."""

    device = torch.device("cpu")

    def is_capturing(self) -> bool:
        return False


_NO_GRAPH = _NoGraph()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tells whether the numbers of a tensor lie side by side, in whatever order."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == 0 or last + 1 == tensor.numel()


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that becomes a method of the class it is put into."""

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(tensor, *args, **kwargs)

    return method
