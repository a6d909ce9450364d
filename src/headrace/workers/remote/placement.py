"""The trainer's side of placement: doors through which proxies ask for places."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.cluster.options import Ray
from headrace.core.errors import ClusterError
from headrace.core.process import this_process

ENDING = 30.0
"""Seconds that the placement process has to end by itself. With it ends a cluster of its own, whose processes would be
left if it was killed meanwhile: on a busy machine that takes longer than a few seconds."""


class Placement(Protocol):
    """Finds places for remote workers."""

    local: int
    """How many workers run on this machine, as if there were no others. They come first."""

    def open_door(self) -> Connection:
        """Returns a new door, over which one proxy asks for places; see `Places`. The caller owns it."""

    def close(self) -> None:
        """Ends all hosts. A later door finds new ones."""


class PlacementConfig(NamedTuple):
    """What the placement process is told."""

    options: Ray
    folder: str
    paths: list[str]
    trainer: int
    """The process that trains: placement ends with it."""


class RayPlacement:
    """Places on the machines of a Ray cluster. The placement process is started when the first door is opened."""

    def __init__(self, options: Ray) -> None:
        self.local = options.local
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket
        self._owner: this_process.Process | None = None
        self._close: weakref.finalize[..., RayPlacement] | None = None

    def open_door(self) -> Connection:
        """See `Placement.open_door`. A cluster that cannot be reached is told over the door.

        Raises `ClusterError` if the placement process cannot be started.
        """
        if not self._runs:
            self._start()

        ours, theirs = Pipe(duplex=True)
        with theirs:
            try:
                socket.send_fds(self._control, [b"d"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise _ended(self._process) from error
        return ours

    @property
    def _runs(self) -> bool:
        # A forked child has no part in the process of its parent.
        return self._process is not None and self._owner is this_process.current and self._process.poll() is None

    def _start(self) -> None:
        self.close()
        control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.workers.remote.placement_main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

        self._control = control
        self._owner = this_process.current
        self._close = weakref.finalize(self, _end, this_process.current, control, self._process)
        config = pickle.dumps(PlacementConfig(self._options, str(Path.cwd()), _paths(), os.getpid()))
        try:
            control.sendall(len(config).to_bytes(4, "big") + config)
        except OSError as error:
            raise _ended(self._process) from error

    def close(self) -> None:
        if self._close is not None:
            self._close()
        self._close = None
        self._process = None


def _paths() -> list[str]:
    """Returns where this process looks for modules of the user's."""
    return [str(Path(path).absolute()) for path in sys.path]


def _ended(process: subprocess.Popen[bytes] | None) -> ClusterError:
    code = None
    if process is not None:
        code = process.poll()

    return ClusterError.about(
        "the process that talks to Ray has ended",
        place="the placement process",
        found=f"exit code {code}",
        expected="a process that runs as long as the loader",
        fix="what it printed says why; see that the head of the Ray cluster runs",
    )


def _end(owner: this_process.Process, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    if owner is not this_process.current:
        control.close()
        return

    # Proxies that still run hold this end of the socket, too: to close it here would tell the process nothing.
    with contextlib.suppress(OSError):  # it has ended already
        control.shutdown(socket.SHUT_RDWR)
    control.close()
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
