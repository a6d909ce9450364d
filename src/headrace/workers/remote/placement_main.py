"""The placement process: Ray's driver, and the only process of a trainer that uses Ray.

Ray ends a driver whose cluster is lost, and has threads that do not go well with forks. So neither the trainer nor its
workers import it. The process ends with the trainer, and with it end its actors and their hosts.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

from headrace.cluster.connection import connect
from headrace.core.errors import ClusterError, HeadraceError
from headrace.workers.remote.placement import PlacementConfig
from headrace.workers.remote.places import Places, Provider
from headrace.workers.remote.ray_hosts import RayHosts


def run_placement(descriptor: int) -> None:
    """Serves doors until the trainer closes its end. descriptor: of a socket over which the trainer speaks.

    First comes a `PlacementConfig` with its length (4 bytes) before it, then one byte with the descriptor of each door.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer to deal with
    # At the end, threads of `Places` may still ask Ray for something, which would start a cluster anew.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    control = socket.socket(fileno=descriptor)
    length = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
    config: PlacementConfig = pickle.loads(control.recv(length, socket.MSG_WAITALL))
    # Workers that were forked from the trainer hold its end of the socket, too.
    ends = [control.fileno()]
    if hasattr(os, "pidfd_open"):
        ends.append(os.pidfd_open(config.trainer))

    places = Places(_hosts(config))
    with contextlib.suppress(ConnectionResetError):
        while True:
            readable, _, _ = select.select(ends, [], [])
            if control.fileno() not in readable:
                break

            data, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                break
            places.serve(Connection(fds[0]))

    # Threads of `Places` may use Ray while that shuts down, which it would write about. Nobody waits for them any more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # The actors end with this process, which is their driver. A Ray of its own ends at its exit.
    sys.exit()


def _hosts(config: PlacementConfig) -> Provider:
    """Connects to the cluster. What goes wrong is told to all who ask for a place."""
    try:
        connect(config.options.address)
        return RayHosts(config.options, config.folder, config.paths)
    except HeadraceError as error:
        return NoHosts(str(error))


class NoHosts:
    """A `Provider` where there is no cluster."""

    patience = 60.0

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def start(self, placed: Callable[[], None]) -> NoReturn:
        raise ClusterError(self._reason)

    def why_it_waits(self, seconds: float) -> str:
        return self._reason

    def has_room(self) -> bool:
        return True

    def why_it_ended(self) -> str:
        return self._reason


if __name__ == "__main__":
    run_placement(int(sys.argv[1]))
