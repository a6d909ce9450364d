"""Hosts of remote workers without Ray: the same host processes, started by the test, also in other networks."""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from headrace.core.errors import ClusterError
from headrace.workers.remote.actors import start_host
from headrace.workers.remote.messages import HostAddress
from headrace.workers.remote.places import Places


@dataclass(frozen=True)
class Machine:
    """What a host stands for: its name, the address on which it listens, and the command that enters its network."""

    name: str
    address: str = "127.0.0.1"
    command: tuple[str, ...] = ()


ONE = (Machine("one"),)


class Keeper:
    """Starts hosts, in a process of its own: a test forks, and a fork beside the start of a program holds that up."""

    def __init__(self) -> None:
        self._hosts: dict[int, tuple[subprocess.Popen[bytes], Connection]] = {}

    def start(self, key: bytes, machine: Machine, folder: str, paths: list[str]) -> tuple[int, HostAddress]:
        process, control, place = start_host(key, machine.address, machine.name, folder, paths, machine.command)
        self._hosts[process.pid] = process, control
        return process.pid, place

    def is_alive(self, pid: int) -> bool:
        return self._hosts[pid][0].poll() is None

    def send_signal(self, pid: int, number: int) -> None:
        self._hosts[pid][0].send_signal(number)

    def wait(self, pid: int) -> None:
        self._hosts[pid][0].wait()


class Keepers(BaseManager):
    """Of which each is a process with a keeper."""


Keepers.register("Keeper", Keeper)


class StartedHost:
    """A host process that a test has started."""

    def __init__(self, keeper: Any, pid: int, place: HostAddress, name: str) -> None:
        self.pid = pid
        self.place = place
        self.name = name
        self._keeper = keeper

    def is_alive(self) -> bool:
        return bool(self._keeper.is_alive(self.pid))

    def end(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends it as a machine ends that is switched off: its worker goes with it."""
        self._keeper.send_signal(self.pid, signal.SIGKILL)
        self._keeper.wait(self.pid)

    def stop(self) -> None:
        """Has it stand still."""
        self._keeper.send_signal(self.pid, signal.SIGSTOP)


class HostsHere:
    """A placement whose hosts run on this machine. Its machines take turns."""

    local = 0

    def __init__(self, machines: tuple[Machine, ...] = ONE, *, most: int | None = None, patience: float = 60.0) -> None:
        """most: hosts that there may be in all; None: as many as are asked for."""
        self.patience = patience
        self.hosts: list[StartedHost] = []
        self._keepers = Keepers(ctx=get_context("spawn"))
        self._keepers.start()
        self._keeper = self._keepers.Keeper()  # type: ignore[attr-defined]  # registered
        self._machines = machines
        self._most = most
        self._key = secrets.token_bytes(32)
        self._places = Places(self)
        self._lock = threading.Lock()
        self._started = 0

    def start(self, placed: Callable[[], None]) -> StartedHost:
        with self._lock:
            if self._most is not None and self._started >= self._most:
                raise ClusterError("no further machine in this test")
            machine = self._machines[self._started % len(self._machines)]
            self._started += 1

        placed()
        pid, place = self._keeper.start(self._key, machine, str(Path.cwd()), sys.path)
        host = StartedHost(self._keeper, pid, place, machine.name)
        self.hosts.append(host)
        return host

    def why_it_waits(self, seconds: float) -> str:
        return f"no machine for {seconds:.0f} s"

    def has_room(self) -> bool:
        return True

    def why_it_ended(self) -> str:
        return ""

    def open_door(self) -> Connection:
        ours, theirs = Pipe(duplex=True)
        self._places.serve(theirs)
        return ours

    def wait_until_idle(self) -> None:
        """Waits until no proxy has a host any more: those of a loader that is gone may take a moment to end."""
        self._wait_until(lambda: not any(self._places._doors.values()))

    def wait_until_started(self) -> None:
        """Waits until all hosts are there that were asked for: an epoch may be over before they are."""
        self._wait_until(lambda: self._places._starting == 0)

    def wait_for(self, count: int) -> None:
        """Waits until so many hosts have come."""
        self._wait_until(lambda: len(self.hosts) >= count)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        with self._places._changed:
            assert self._places._changed.wait_for(is_so, 60)

    def close(self) -> None:
        for host in self.hosts:
            host.end()
        self._keepers.shutdown()


@contextlib.contextmanager
def placed_on(loader: Any, hosts: HostsHere, local: int = 0) -> Iterator[HostsHere]:
    """Has the workers of a loader with `backend="ray"` run on these hosts instead of Ray's.

    local: how many of them run on this machine without a host.
    """
    hosts.local = local
    loader._session.resources.placement = hosts
    try:
        yield hosts
    finally:
        loader._iterator = None
        loader._session.resources.placement = None
