"""Places for remote workers: who has which host, and what becomes of one that failed.

A *place* is where a host listens. A proxy asks for one over its door, and keeps it until the door closes. Then the
place is free for the next proxy, with the dataset that its host has.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from headrace.core.errors import ClusterError
from headrace.workers.remote.messages import HostAddress

ATTEMPTS = 3
"""How often it is tried to start a host before somebody is told that there is none."""

LOOK_EVERY = 0.5
"""Seconds after which it is looked whether a door is still open."""

IDLE = 5.0
"""Seconds for which a host that nobody uses is kept although others may need its machine."""


class HostHandle(Protocol):
    """A host that runs, or did."""

    place: HostAddress

    def is_alive(self) -> bool:
        """Tells whether it can take a proxy."""

    def end(self) -> None:
        """Ends it."""


class Provider(Protocol):
    """Starts hosts on other machines. Called in several threads at once."""

    patience: float
    """Seconds after which somebody who waits for a host is told why."""

    def start(self, placed: Callable[[], None]) -> HostHandle:
        """Starts a host, and returns when it listens. Raises `ClusterError` where no host can be had.

        placed: to be called when there is a machine for it.
        """

    def why_it_waits(self, seconds: float) -> str:
        """Returns in words why there has been no machine for so long."""

    def has_room(self) -> bool:
        """Tells whether there is a machine for one more host."""

    def why_it_ended(self) -> str:
        """Returns in words why there will be no machine ever again; empty: there may be one. Called now and then."""


class Places:
    """The hosts of one loader. Belongs to the process that finds places; each door has a thread there.

    A host that is being started belongs to nobody yet: whoever asks first gets it. So an epoch that is over before its
    hosts have come leaves them to the next one.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._free: list[HostHandle] = []
        self._errors: list[ClusterError] = []
        """Of hosts that could not be started: each goes to one of those who wait."""
        self._starting = 0
        self._placed = 0
        """Hosts that are being started and have a machine."""
        self._waiting: set[Connection] = set()
        """The doors that wait for a host."""
        self._doors: dict[Connection, HostHandle | None] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._release_idle, daemon=True).start()

    def serve(self, door: Connection) -> None:
        """Serves a door in a thread of its own, until the other end closes."""
        with self._changed:
            # A proxy that has ended has closed its door already, even if the thread of that has not noticed yet. If a
            # message waits there, it says that the host is lost: the thread ends it.
            for other in list(self._doors):
                if _is_closed(other) and not _has_message(other):
                    self._give_back(other)
            self._doors[door] = None

        threading.Thread(target=self._answer, args=(door,), daemon=True).start()

    def _answer(self, door: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                door.poll(None)
                # Whatever it says, the host that it has had is lost. Under the lock: to nobody else may that be given.
                with self._changed:
                    asked, _ = door.recv()
                    before = self._doors[door]
                    self._doors[door] = None

                if before is not None:
                    before.end()
                if asked == "place":
                    self._give_place(door)

        with self._changed:
            self._give_back(door)
            self._doors.pop(door, None)
            door.close()
            self._changed.notify_all()

    def _give_place(self, door: Connection) -> None:
        """Sends a door a place, or why there is none."""
        try:
            host = self._next_host(door)
        except ClusterError as error:
            door.send(("refused", str(error)))
            return

        if host is not None:
            door.send(("place", host.place))

    def _end_host(self, door: Connection) -> None:
        """Ends the host that a door has, if it has one."""
        with self._changed:
            before = self._doors.get(door)
            self._doors[door] = None

        if before is not None:
            before.end()

    def _next_host(self, door: Connection) -> HostHandle | None:
        """Waits for a host and gives it to a door; None once the door is closed. Raises `ClusterError`."""
        began = time.monotonic()
        told = began
        try:
            while not _is_closed(door):
                host = self._take_free(door)
                if host is not None:
                    return host

                now = time.monotonic()
                if self._placed:
                    told = now  # a host that has a machine will come, or fail
                elif now - told >= self._provider.patience:
                    told = now
                    door.send(("waiting", self._provider.why_it_waits(now - began)))
                if reason := self._provider.why_it_ended():
                    raise ClusterError(reason)
        finally:
            with self._changed:
                self._waiting.discard(door)
        return None

    def _take_free(self, door: Connection) -> HostHandle | None:
        """Gives a door a host that nobody has; has hosts started, and waits a little, if there is none."""
        with self._changed:
            if self._errors:
                raise self._errors.pop()

            if not self._free:
                self._waiting.add(door)
                self._start_enough()
                self._changed.wait(LOOK_EVERY)
            if not self._free or _is_closed(door):
                return None

            # At once, under the lock: a door that has a host and still counted would have another one started.
            self._waiting.discard(door)
            host = self._free.pop()
            self._doors[door] = host

        if host.is_alive():
            return host

        self._end_host(door)
        return None

    def _start_enough(self) -> None:
        """Starts as many hosts as are waited for."""
        # A proxy of an epoch that is over may have closed its door while the thread of that still waits.
        self._waiting = {door for door in self._waiting if not _is_closed(door)}
        while self._starting < len(self._waiting):
            self._starting += 1
            threading.Thread(target=self._start_one, daemon=True).start()

    def _start_one(self) -> None:
        host: HostHandle | None = None
        error: ClusterError | None = None
        is_placed = threading.Event()

        def placed() -> None:
            with self._changed:
                self._placed += not is_placed.is_set()
                is_placed.set()

        for _ in range(ATTEMPTS):
            try:
                host = self._provider.start(placed)
                break
            except ClusterError as refusal:
                error = refusal
            except Exception as unexpected:  # noqa: BLE001 - whoever waits must be told, whatever a library raises
                error = ClusterError(f"a host could not be started: {unexpected!r}")

        with self._changed:
            self._starting -= 1
            self._placed -= is_placed.is_set()
            if host is not None:
                self._free.append(host)
            elif error is not None:
                self._errors.append(error)
            self._changed.notify_all()

    def _give_back(self, door: Connection) -> None:
        host = self._doors.get(door)
        if host is not None:
            self._doors[door] = None
            self._free.append(host)
            self._changed.notify_all()

    def _release_idle(self) -> None:
        """Ends hosts that nobody has used for a while, if there is no room for another one: somebody may wait for it.

        Otherwise they stay for the next epoch, with the dataset that they have.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._free)
                idle = list(self._free)

            time.sleep(IDLE)
            if self._provider.has_room():
                continue

            with self._changed:
                # Those that were used meanwhile stand at the end, in another order, or not at all: they may go, too.
                released = [host for host in idle if host in self._free]
                self._free = [host for host in self._free if host not in released]
            for host in released:
                host.end()

    def close(self) -> None:
        """Ends all hosts."""
        with self._changed:
            hosts = [*self._free, *(host for host in self._doors.values() if host is not None)]
            self._free.clear()
        for host in hosts:
            host.end()


def _is_closed(door: Connection) -> bool:
    """Tells whether the other end of a door has closed; a message that waits there does not count."""
    if door.closed:
        return True
    poll = select.poll()
    poll.register(door.fileno(), 0)
    return bool(poll.poll(0))


def _has_message(door: Connection) -> bool:
    """Tells whether something waits to be read from a door that the other end has closed."""
    with socket.fromfd(door.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as view, contextlib.suppress(OSError):
        return bool(view.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False
