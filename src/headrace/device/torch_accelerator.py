"""The accelerator that torch has: streams, events and copies are torch's; page-locking is the driver's."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from headrace.core.accelerator import Driver

PORTABLE = 1
"""`cudaHostRegisterPortable`: memory that is registered once serves all devices."""

_CUDA = Driver()


class TorchEvent:
    """Some events of torch's, which are one: it is over when all of them are."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def query(self) -> bool:
        """See `DeviceEvent.query`. While a stream records a graph, the answer is no: to ask would break that."""
        if _captures():
            return False
        return all(event.query() for event in self.events)

    def synchronize(self) -> None:
        """See `DeviceEvent.synchronize`."""
        for event in self.events:
            event.synchronize()

    def elapsed_since(self, earlier: TorchEvent) -> float:
        """See `DeviceEvent.elapsed_since`. Only events of one stream tell."""
        if len(self.events) != 1 or len(earlier.events) != 1:
            return math.nan
        milliseconds: float = earlier.events[0].elapsed_time(self.events[0])
        return milliseconds / 1e3


class _EventWithGrace(TorchEvent):
    """Counts as over a batch later, since not all streams could be asked."""

    _asked = False

    def query(self) -> bool:
        over = self._asked and super().query()
        self._asked = True
        return over


class TorchStream:
    """A stream of torch's."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchStream) and self.stream == other.stream

    def __hash__(self) -> int:
        return hash(self.stream)

    def wait_event(self, event: TorchEvent) -> None:
        """See `DeviceStream.wait_event`."""
        for one in event.events:
            self.stream.wait_event(one)


class TorchAccelerator:
    """One device of torch's that has streams: CUDA, ROCm, XPU and those of other makers."""

    def __init__(self, device: torch.device) -> None:
        """device: with its index."""
        self.device = device
        self._own: list[Any] = []
        """Streams that were made here."""

    @property
    def driver(self) -> Driver | None:
        """See `Accelerator.driver`. Registering is known of CUDA and ROCm, which torch calls CUDA as well."""
        if self.device.type == "cuda":
            return _CUDA
        return None

    def stream(self, *, new: bool = False) -> TorchStream:
        """See `Accelerator.stream`."""
        if not new:
            return TorchStream(torch.accelerator.current_stream(self.device))
        made = torch.Stream(device=self.device)
        self._own.append(made)
        return TorchStream(made)

    def event(self, stream: TorchStream | None = None, *, timed: bool = False) -> TorchEvent | None:
        """See `Accelerator.event`."""
        if _captures():
            return None
        if stream is not None and timed:
            event = torch.Event(self.device, enable_timing=True)
            event.record(stream.stream)
            return TorchEvent([event])
        if stream is not None:
            return TorchEvent([stream.stream.record_event()])
        if self.device.type == "cuda":
            events = _events_of_contexts()
            if events is not None:
                return TorchEvent(events)

        # What is asked of other streams of the user's is not seen here: they have until the batch after the next.
        streams = [*self._own]
        for index in range(torch.accelerator.device_count()):
            if self.device.type != "cuda" or _has_context(index):
                streams.append(torch.accelerator.current_stream(torch.device(self.device.type, index)))
        return _EventWithGrace([one.record_event() for one in streams])

    def empty(self, nbytes: int) -> torch.Tensor:
        """See `Accelerator.empty`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def lend(self, memory: torch.Tensor, stream: TorchStream) -> None:
        """See `Accelerator.lend`."""
        memory.record_stream(stream.stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: TorchStream) -> None:
        """See `Accelerator.copy`. What lies in torch's own page-locked memory, torch keeps until the copy is done."""
        with _computing_on(stream.stream):
            target.copy_(source, non_blocking=True)

    def register(self, address: int, nbytes: int) -> bool:
        """See `Accelerator.register`."""
        runtime: Any = torch.cuda.cudart()
        if int(runtime.cudaHostRegister(address, nbytes, PORTABLE)) == 0:
            return True

        self._forget_error()
        return False

    def unregister(self, address: int) -> None:
        """See `Accelerator.unregister`."""
        runtime: Any = torch.cuda.cudart()
        if int(runtime.cudaHostUnregister(address)) != 0:
            self._forget_error()

    def _forget_error(self) -> None:
        """Has the runtime forget an error: the next call would tell it, which has nothing to do with it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device).fill_(1)


class NoStreams:
    """A device of torch's without streams (MPS, this machine's memory): what is asked for is done, or waited for."""

    driver = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self, *, new: bool = False) -> NoStreams:
        """See `Accelerator.stream`. There is one."""
        return self

    def wait_event(self, event: object) -> None:
        """Does nothing: all before is done before."""

    def event(self, stream: object = None, *, timed: bool = False) -> TorchEvent:
        """See `Accelerator.event`."""
        return TorchEvent([])

    def empty(self, nbytes: int) -> torch.Tensor:
        """See `Accelerator.empty`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def lend(self, memory: torch.Tensor, stream: object) -> None:
        """Does nothing: there is one stream."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: object) -> None:
        """See `Accelerator.copy`. It waits for the copy."""
        target.copy_(source)

    def register(self, address: int, nbytes: int) -> bool:
        """See `Accelerator.register`."""
        return False

    def unregister(self, address: int) -> None:
        """See `Accelerator.unregister`."""


def _captures() -> bool:
    """Tells whether the thread's current stream records a graph."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def _computing_on(stream: Any) -> Iterator[None]:
    before = torch.accelerator.current_stream(stream.device)
    index = torch.accelerator.current_device_index()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(index)


def _has_context(index: int) -> bool:
    """Tells whether this process computes on a CUDA device."""
    return bool(torch._C._cuda_hasPrimaryContext(index))  # type: ignore[attr-defined]  # known at run time only


class _ContextEvent:
    """An event behind all that was asked of one device, by `cuCtxRecordEvent`: CUDA 12.5 and later."""

    def __init__(self, driver: Any, context: Any) -> None:
        self._driver = driver
        _checked(driver.cuCtxPushCurrent(context))
        try:
            (self._event,) = _checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
            _checked(driver.cuCtxRecordEvent(context, self._event))
        finally:
            driver.cuCtxPopCurrent()

    def query(self) -> bool:
        return int(self._driver.cuEventQuery(self._event)[0]) == 0

    def synchronize(self) -> None:
        _checked(self._driver.cuEventSynchronize(self._event))

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            self._driver.cuEventDestroy(self._event)


def _events_of_contexts() -> list[_ContextEvent] | None:
    """Returns an event for each device that this process computes on; None: NVIDIA's bindings are not there."""
    driver = _driver_bindings()
    if driver is None:
        return None
    return [
        _ContextEvent(driver, _primary_context(index))
        for index in range(torch.cuda.device_count())
        if _has_context(index)
    ]


@functools.cache
def _driver_bindings() -> Any:
    """Returns `cuda.bindings.driver`, which torch's own CUDA packages bring along; None: it is missing or too old."""
    with contextlib.suppress(ImportError, AttributeError):
        driver = importlib.import_module("cuda.bindings.driver")
        driver.cuCtxRecordEvent  # noqa: B018 - of CUDA 12.5 and later
        return driver
    return None


@functools.cache
def _primary_context(index: int) -> Any:
    driver = _driver_bindings()
    (device,) = _checked(driver.cuDeviceGet(index))
    (context,) = _checked(driver.cuDevicePrimaryCtxRetain(device))
    return context


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what a call of the driver gave besides its status. Raises RuntimeError."""
    status, *rest = answer
    if int(status) != 0:
        raise RuntimeError(f"the CUDA driver answered {status!r}")
    return tuple(rest)
