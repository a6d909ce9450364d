"""Slots whose leases have ended while the accelerator may still read them."""

from __future__ import annotations

from collections import deque

from headrace.core.accelerator import Accelerator, DeviceEvent
from headrace.shared_memory.memory import Slot


class SlotsInFlight:
    """Slots whose leases have ended, until the device has done all that it was asked for before."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._unmarked: list[Slot] = []
        self._marked: deque[tuple[DeviceEvent, list[Slot]]] = deque()

    def exchange(self, ended: list[Slot]) -> list[Slot]:
        """Takes in slots whose leases have ended; returns those that nobody reads any more."""
        self._unmarked.extend(ended)
        # One event for all that have come since: to record it later than a lease ended is never wrong.
        if self._unmarked:
            event = self._accelerator.event()
            if event is not None:
                self._marked.append((event, self._unmarked))
                self._unmarked = []

        done: list[Slot] = []
        while self._marked and self._marked[0][0].query():
            done.extend(self._marked.popleft()[1])
        return done

    def waiting(self) -> set[Slot]:
        """Returns the slots that are still to come out of `exchange`."""
        return {*self._unmarked, *(slot for _, slots in self._marked for slot in slots)}
