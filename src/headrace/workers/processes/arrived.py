"""Results that have come from workers, over memory that is leased."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.batches.join import NotAlikeError, join
from headrace.shared_memory.arena import InboundRegion
from headrace.shared_memory.codec import buffers_in, decode, decode_unopened
from headrace.shared_memory.memory import Bytes, Slot
from headrace.telemetry.stopwatch import Times, joined_times
from headrace.workers.processes.messages import InSlot, Result


class Arrived(NamedTuple):
    """A result whose memory is leased: it outlives the worker that made it."""

    status: str
    header: bytes | memoryview
    leases: list[Bytes]
    places: list[tuple[int, int, int]]
    """Where the buffers lie: which of `leases`, where in it, how many bytes."""
    worker: int
    times: Times
    nbytes: int
    at: float
    """When it arrived."""
    region: InboundRegion
    slots: list[Slot]
    """Those of the leases, in `region`."""
    rows: int = -1
    """See `Result.rows`."""
    slow: Sequence[tuple[int, float]] = ()
    """See `Result.slow`."""

    @property
    def seconds(self) -> float:
        """How long the worker took to make it."""
        return self.times.making

    def content(self) -> Any:
        """Returns what the worker has sent, over memory that is leased still."""
        return decode(self.header, buffers_in(self.leases, self.places))

    def opened(self, *, for_device: bool = False) -> tuple[Any, Any, Any]:
        """Returns the payload, the replica's state and the losses, in memory that is the user's from here on.

        for_device: whether the payload goes on to a device; then it may come as an `UnopenedBatch`.
        """
        self.region.hand_over(self.slots)
        if for_device and self.status != "error":
            payload, state, losses = decode_unopened(self.header, self.leases, self.places)
        else:
            payload, state, losses = self.content()
        return payload, state, losses


class Joined(NamedTuple):
    """A batch of parts. Looks like `Arrived`, but its memory is its own."""

    status: str
    batch: Any
    worker: int
    times: Times
    nbytes: int
    at: float

    def opened(self, *, for_device: bool = False) -> tuple[Any, Any, Any]:
        return self.batch, None, ()


def join_arrived(parts: Sequence[tuple[Sequence[int], Arrived]], count: int) -> Joined | None:
    """Joins parts of a batch of so many rows: which of them, and what has them. None: they cannot be joined."""
    opened = [(rows, arrived.opened()[0]) for rows, arrived in parts]
    try:
        batch = join(opened, count)
    except NotAlikeError:
        return None

    last = parts[-1][1]
    times = joined_times([arrived.times for _, arrived in parts])
    return Joined("batch", batch, last.worker, times, sum(arrived.nbytes for _, arrived in parts), last.at)


class OpenedEarly(NamedTuple):
    """A batch that was opened before its turn. Looks like `Arrived`."""

    status: str
    contents: tuple[Any, Any, Any]
    worker: int
    times: Times
    nbytes: int
    at: float

    def content(self) -> Any:
        return self.contents

    def opened(self, *, for_device: bool = False) -> tuple[Any, Any, Any]:
        return self.contents


def prepared(result: Any, begin: Callable[[Any], Any]) -> Any:
    """Returns a result with `begin(batch)` in the place of its batch; an error as it is."""
    if result.status == "error":
        return result
    batch, state, losses = result.opened(for_device=True)
    return OpenedEarly(
        result.status, (begin(batch), state, losses), result.worker, result.times, result.nbytes, result.at
    )


def leased(worker: int, region: InboundRegion, result: Result) -> Arrived:
    """Takes the leases of a result that has come now."""
    leases = [region.lease(slot, used) for slot, used in result.slots]
    header: bytes | memoryview
    if isinstance(result.header, InSlot):
        header = region.lease(result.header.slot, result.header.nbytes).data
    else:
        header = result.header

    nbytes = sum(nbytes for _, _, nbytes in result.buffers) or len(header)  # small tensors lie in the header
    slots = [slot for slot, _ in result.slots]
    now = time.perf_counter()
    return Arrived(
        result.status,
        header,
        leases,
        result.buffers,
        worker,
        result.times,
        nbytes,
        now,
        region,
        slots,
        result.rows,
        result.slow,
    )
