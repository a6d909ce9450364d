"""The accelerator that batches go to: all that this package asks of one.

Work on an accelerator is done later than it is asked for. A *stream* does its work in order; work of different streams
may be done in any order, unless a stream waits for an *event*, which marks a place in another one. A copy reads its
source when it is done, not when it is asked for: until then nobody may write to the source.

`device.torch_accelerator` is the real one. `testing.SimulatedAccelerator` and the pipe of the tests stand in for it.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from headrace.core.process.this_process import Process


class Driver:
    """What all devices of one kind share."""

    def __init__(self) -> None:
        self.page_locks: dict[Process, Any] = {}
        """What page-locks memory, in each process that does."""


class DeviceEvent(Protocol):
    """A place in the work of streams."""

    def query(self) -> bool:
        """Tells whether all before it is done. Does not wait."""

    def synchronize(self) -> None:
        """Waits until all before it is done."""

    def elapsed_since(self, earlier: Any) -> float:
        """Returns the seconds that the device took from an earlier `DeviceEvent`; NaN: it does not tell.

        Both must be over, and made with `timed`.
        """


class DeviceStream(Protocol):
    """Work that is done in order."""

    def wait_event(self, event: Any) -> None:
        """Has all that is asked of the stream from here on wait until all before an `DeviceEvent` is done."""


class Accelerator(Protocol):
    """One device, in five words: `stream`, `event`, `copy`, `register` and, of an event, `query`."""

    device: torch.device

    @property
    def driver(self) -> Driver | None:
        """What all devices of its kind share; None: it has no use for memory that is page-locked."""

    def stream(self, *, new: bool = False) -> DeviceStream:
        """Returns the stream that the calling thread computes on now, or a new one."""

    def event(self, stream: Any = None, *, timed: bool = False) -> DeviceEvent | None:
        """Returns an event behind all that was asked of a `DeviceStream`; None: of all streams of all devices.

        timed: whether it notes when it is over, which costs a little.

        Returns None where no event can be recorded now, since a stream records a graph.
        """

    def empty(self, nbytes: int) -> torch.Tensor:
        """Returns uninitialised device memory, uint8 [nbytes], for the stream that the thread computes on now.

        It may be memory that was freed just now: work that was asked of this stream before may still use it. Raises
        `torch.OutOfMemoryError`.
        """

    def lend(self, memory: torch.Tensor, stream: Any) -> None:
        """Has memory of one `DeviceStream` be used by another: it is not given out anew before that has come so far."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Asks a `DeviceStream` for a copy, uint8 [n] to uint8 [n].

        target: device memory. source: device memory, or memory of this machine: it is read later if it is registered,
        and before the call returns if it is not.
        """

    def register(self, address: int, nbytes: int) -> bool:
        """Locks pages of this process in memory, for the device to read. False: that was refused."""

    def unregister(self, address: int) -> None:
        """Takes back what was registered at an address, if anything was. No copy of it may be under way."""
