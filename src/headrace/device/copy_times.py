"""How long copies take on the device, told by the device."""

from __future__ import annotations

import math
from collections import deque
from time import perf_counter

from headrace.core.accelerator import Accelerator, DeviceEvent, DeviceStream
from headrace.telemetry.device_copies import RECENT, DeviceCopies

RENEWED = 5.0
"""Seconds after which the clocks of device and machine are compared anew: they drift apart."""


class CopyTimes:
    """Measures the copies of one stream. The device notes the times; nobody waits for it."""

    def __init__(self, accelerator: Accelerator, stream: DeviceStream, name: str) -> None:
        """name: of the device, as users call it."""
        self._accelerator = accelerator
        self._stream = stream
        self._name = name
        self._reference: tuple[float, DeviceEvent] | None = None
        self._batches = 0
        self._bytes = 0
        self._image_bytes = 0
        self._timed = 0
        self._timed_bytes = 0
        self._seconds = 0.0
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=RECENT)

    def begin(self, *, idle: bool) -> DeviceEvent | None:
        """Marks the beginning of a batch's copies. idle: whether the stream has nothing to do.

        Then its next event comes at once, so that this is when the clocks are compared.
        """
        began = self._accelerator.event(self._stream, timed=True)
        now = perf_counter()
        if began is not None and idle and (self._reference is None or now - self._reference[0] > RENEWED):
            self._reference = now, began
        return began

    def sent(self, nbytes: int, image_bytes: int) -> None:
        """Counts a batch."""
        self._batches += 1
        self._bytes += nbytes
        self._image_bytes += image_bytes

    def done(self, began: DeviceEvent | None, ended: DeviceEvent, nbytes: int) -> None:
        """Takes in the times of a batch whose copies are over."""
        if began is None or self._reference is None:
            return
        seconds = ended.elapsed_since(began)
        if not math.isfinite(seconds):
            return

        self._timed += 1
        self._timed_bytes += nbytes
        self._seconds += seconds
        at, reference = self._reference
        begin = at + began.elapsed_since(reference)
        self._recent.append((begin, begin + seconds, nbytes))

    def copies(self) -> DeviceCopies:
        """Returns what is known by now."""
        return DeviceCopies(
            self._name,
            self._batches,
            self._bytes,
            self._image_bytes,
            self._timed,
            self._timed_bytes,
            self._seconds,
            tuple(self._recent),
        )
