"""Results that have come from workers, over memory that is leased."""

from __future__ import annotations

from typing import NamedTuple

from headrace.shared_memory.arena import InboundRegion
from headrace.shared_memory.memory import Bytes, Slot
from headrace.telemetry.stopwatch import Times
from headrace.workers.processes.messages import InSlot, Result


class Arrived(NamedTuple):
    """A result whose memory is leased: it outlives the worker that made it."""

    status: str
    header: bytes | memoryview
    buffers: list[Bytes]
    worker: int
    times: Times
    nbytes: int
    at: float
    """When it arrived."""
    region: InboundRegion
    slots: list[Slot]
    """Where the buffers lie, in `region`."""


def leases_of(region: InboundRegion, result: Result) -> tuple[bytes | memoryview, list[Bytes]]:
    """Takes the leases of a result: its header, and its buffers as arrays that keep their slots' leases alive."""
    slots = [region.lease(slot, used) for slot, used in result.slots]
    buffers = [slots[index][start : start + nbytes] for index, start, nbytes in result.buffers]
    if isinstance(result.header, InSlot):
        return region.lease(result.header.slot, result.header.nbytes).data, buffers
    return result.header, buffers
