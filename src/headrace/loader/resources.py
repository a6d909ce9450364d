"""What a loader holds that belongs to this process: memory, processes, places on other machines."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.device.feed import DeviceFeed
from headrace.loader.read_ahead import RemoteReading
from headrace.shared_memory.arena import ORDINARY, Arena, HostMemory
from headrace.shared_memory.leases import LocalMemory
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.workers.processes.start import ForkServers
from headrace.workers.remote.placement import Placement


@dataclass
class Resources:
    """Made by the first epoch that needs them. A copy of the loader makes its own."""

    memory: LocalMemory | LockedMemory | None = None
    arena: Arena | None = None
    host: HostMemory = ORDINARY
    """What memory batches are made in."""
    feed: DeviceFeed | None = None
    """What brings batches to a device; None: they stay on this machine."""
    fork_servers: ForkServers = field(default_factory=ForkServers)
    placement: Placement | None = None
    """What finds places for workers on other machines; None: no epoch has asked for any."""
    remote: RemoteReading | None = None
    """How data are read that lie elsewhere; None: they lie on this machine, or nobody has looked yet."""
