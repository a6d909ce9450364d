"""Where the batches of a loader lie: ordinary memory, or memory that an accelerator reads by itself."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from headrace.core.accelerator import Accelerator
from headrace.core.errors import warn
from headrace.core.process.per_process import PerProcess
from headrace.core.process.this_process import ForkLock
from headrace.device.choice import accelerator_for, page_lock_for
from headrace.device.feed import DeviceFeed
from headrace.device.options import OnDevice
from headrace.device.torch_accelerator import NoStreams
from headrace.loader.options import AskedArguments
from headrace.shared_memory.arena import ORDINARY, Arena, HostMemory
from headrace.shared_memory.leases import LocalMemory
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.writer_memory import BufferLayout

ARENA = PerProcess(Arena)
LOCAL_MEMORY = PerProcess(LocalMemory)

_locked: weakref.WeakKeyDictionary[PageLock, weakref.ref[LockedMemory]] = weakref.WeakKeyDictionary()
_making = ForkLock()


def accelerator_of(loader: AskedArguments[Any]) -> Accelerator | None:
    """Returns the accelerator to which a loader's batches go, or that is to read them; None: there is none."""
    asked: OnDevice | None = loader._options.on_device
    if asked is not None:
        return accelerator_for(asked.device)
    if loader.pin_memory:
        return accelerator_for(None)
    return None


def host_memory_for(accelerator: Accelerator | None, *, on_device: bool) -> HostMemory:
    """Returns how the batches of a loader are laid out. on_device: whether they are sent, not only page-locked."""
    if accelerator is None:
        return ORDINARY
    lock = page_lock_for(accelerator)
    if lock is None:
        return ORDINARY
    if not on_device:
        return HostMemory(lock, BufferLayout.SMALL_TOGETHER)
    return HostMemory(lock, BufferLayout.TOGETHER)


def memory_here(asked: HostMemory) -> LocalMemory | LockedMemory:
    """Returns the memory of batches that this process makes; all loaders of a kind share it. The caller keeps it."""
    if asked.lock is None:
        return LOCAL_MEMORY.get()

    with _making.here:
        known = _locked.get(asked.lock, lambda: None)()
        if known is None:
            known = LockedMemory(asked.lock)
            _locked[asked.lock] = weakref.ref(known)
        return known


def feed_for(
    asked: OnDevice, accelerator: Accelerator | None, memory: HostMemory, known: DeviceFeed | None
) -> DeviceFeed | None:
    """Returns what brings the batches of a loader to its device; None: they stay here. known: that of its last epoch.

    Warns, as torch does, where there is no accelerator. Then batches are transformed here.
    """
    if accelerator is None:
        if asked.device is None or asked.device.type != "cpu":
            warn(f"device={asked.name!r} is set but no accelerator is found: batches stay in this machine's memory.")
        if asked.transform is None and not asked.fixed_addresses:
            return None
        return known or DeviceFeed(NoStreams(torch.device("cpu")), None, asked)
    if known is not None and known.serves(accelerator):
        return known  # its stream serves the loader for its whole life

    here = memory_here(memory)
    return DeviceFeed(accelerator, here if isinstance(here, LockedMemory) else None, asked)
