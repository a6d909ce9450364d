"""Page-locked slots, as a property of random programs: no device ever sees a wrong byte, and each mistake is found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.shared_memory import slots
from headrace.shared_memory.arena import InboundRegion
from headrace.shared_memory.memory import Region, Slot
from headrace.shared_memory.page_lock import LockableMapping
from headrace.shared_memory.slots_in_flight import SlotsInFlight
from headrace.testing import SimulatedAccelerator
from tests.device.pipe_accelerator import PipeAccelerator
from tests.device.programs import Program

DEVICES = [
    SimulatedAccelerator,
    pytest.param(
        PipeAccelerator,
        marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux puts pages into pipes"),
    ),
]

CHUNK = 250
"""Programs of one test: a quarter of what its time allows on a busy machine."""

CHUNKS = [*range(4), *(pytest.param(number, marks=pytest.mark.stress) for number in range(4, 40))]
"""Of 10,000 programs, the first thousand runs with all tests; the others under `make stress`."""

MOST = 500
"""Programs within which a mistake must be found."""


@pytest.fixture(autouse=True)
def _no_slot_is_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools give pages back as soon as they may."""
    monkeypatch.setattr(slots, "PATIENCE", 2)
    monkeypatch.setattr(slots, "KEPT", 0)


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
def test_the_device_sees_what_was_sent(device: type[SimulatedAccelerator]) -> None:
    for seed in range(200):
        assert Program(seed, device(seed)).run() == [], f"program {seed}"


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("device", DEVICES)
def test_the_device_sees_what_was_sent_by_10_000_programs(device: type[SimulatedAccelerator], chunk: int) -> None:
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        assert Program(seed, device(seed)).run() == [], f"program {seed}"


def _reuse_at_the_end_of_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotsInFlight, "exchange", lambda in_flight, ended: ended)


def _an_event_of_one_stream(patch: pytest.MonkeyPatch) -> None:
    exchange = SlotsInFlight.exchange

    def narrow(in_flight: SlotsInFlight, ended: list[Slot]) -> list[Slot]:
        accelerator: Any = in_flight._accelerator
        event = accelerator.event
        accelerator.event = lambda stream=None: event(stream or accelerator.stream())
        try:
            return exchange(in_flight, ended)
        finally:
            del accelerator.event

    patch.setattr(SlotsInFlight, "exchange", narrow)


def _reuse_while_a_graph_is_recorded(patch: pytest.MonkeyPatch) -> None:
    exchange = SlotsInFlight.exchange

    def hasty(in_flight: SlotsInFlight, ended: list[Slot]) -> list[Slot]:
        done = exchange(in_flight, ended)
        done += in_flight._unmarked
        in_flight._unmarked = []
        return done

    patch.setattr(SlotsInFlight, "exchange", hasty)


def _pages_go_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Region, "discard", lambda region, slot: _discard(region, slot))


def _discard(region: Region, slot: Slot) -> None:
    region.backing.discard(region._chunk(slot.chunk), slot.offset, slot.capacity)


def _a_new_worker_gets_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    ticket = InboundRegion.ticket

    def generous(region: InboundRegion, *layout: Any) -> Any:
        ticket_ = ticket(region, *layout)
        assert region._in_flight is not None
        waiting = region._in_flight.waiting()
        ticket_._free = sorted({*ticket_._free, *waiting})
        ticket_._leased = [slot for slot in ticket_._leased if slot not in waiting]
        return ticket_

    patch.setattr(InboundRegion, "ticket", generous)


def _memory_stays_registered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockableMapping, "__del__", lambda mapping: None)


def _unregistered_under_a_copy(patch: pytest.MonkeyPatch) -> None:
    def hasty(mapping: LockableMapping) -> None:
        for found in mapping._ranges:
            assert mapping._lock is not None
            mapping._lock.unlock(found)

    patch.setattr(LockableMapping, "__del__", hasty)


MISTAKES = {
    "reuse at the end of the lease": (_reuse_at_the_end_of_the_lease, SimulatedAccelerator),
    "reuse at the end of the lease, on real pages": (_reuse_at_the_end_of_the_lease, PipeAccelerator),
    "an event of one stream": (_an_event_of_one_stream, SimulatedAccelerator),
    "reuse while a graph is recorded": (_reuse_while_a_graph_is_recorded, SimulatedAccelerator),
    "pages of a registered range go back": (_pages_go_back, PipeAccelerator),
    "a new worker gets what is in flight": (_a_new_worker_gets_what_is_in_flight, SimulatedAccelerator),
    "memory stays registered behind its mapping": (_memory_stays_registered, PipeAccelerator),
    "memory is unregistered under a copy": (_unregistered_under_a_copy, SimulatedAccelerator),
}


@pytest.mark.quick
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    plant: Callable[[pytest.MonkeyPatch], None]
    plant, device = MISTAKES[mistake]
    if device is PipeAccelerator and sys.platform != "linux":
        pytest.skip("only Linux puts pages into pipes")

    plant(monkeypatch)
    for seed in range(MOST):
        if Program(seed, device(seed)).run():
            record_property("programs", seed + 1)
            return
    pytest.fail(f"{MOST} programs did not find the mistake")
