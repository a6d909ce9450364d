"""Which accelerator there is: the one seam between this package and torch's devices."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch

from headrace.core.accelerator import Accelerator
from headrace.core.process import this_process
from headrace.device.options import no_such_device
from headrace.device.torch_accelerator import NoStreams, TorchAccelerator
from headrace.shared_memory.page_lock import PageLock

stand_in: Any = None
"""What stands in for the accelerator of this process, in tests: see `testing.SimulatedAccelerator`."""


def accelerator_for(device: torch.device | None) -> Accelerator | None:
    """Returns a device; None: there is no accelerator, or the device is this machine's own memory.

    device: None: the accelerator that there is, and of several the one that the calling thread computes on. Raises
    `UsageError` for a device that is not there although others are.
    """
    if device is not None and device.type == "cpu":
        return None
    if not torch.accelerator.is_available():
        return None

    current = torch.accelerator.current_accelerator()
    if current is None:
        return None
    if device is None:
        device = current
    if device.type != current.type:
        raise no_such_device(device, f"'{current.type}', on this machine")

    index = cast("int | None", device.index)
    if index is None:
        index = torch.accelerator.current_device_index()
    count = torch.accelerator.device_count()
    if index >= count:
        names = " or ".join(f"'{current.type}:{number}'" for number in range(count))
        raise no_such_device(device, f"{names}, on this machine")
    if stand_in is not None:
        found: Accelerator = stand_in.devices[index]
        return found
    return _of_torch(torch.device(device.type, index))


@functools.cache
def _of_torch(device: torch.device) -> Accelerator:
    if device.type == "mps":
        return NoStreams(device)
    return TorchAccelerator(device)


def page_lock_for(accelerator: Accelerator) -> PageLock | None:
    """Returns what page-locks memory of this process for an accelerator; None: that has no use for it."""
    driver = accelerator.driver
    if driver is None:
        return None

    # What the parent of a forked child has locked, the child has not.
    process = this_process.current
    if process not in driver.page_locks:
        driver.page_locks[process] = PageLock(accelerator)
    found: PageLock = driver.page_locks[process]
    return found
