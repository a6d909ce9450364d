"""The Ray actor that runs a host. Imported by Ray's workers on other machines: it must be quick to import."""

from __future__ import annotations

import contextlib
import pickle
import socket
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

from headrace.cluster.code import check_versions
from headrace.core.process.parent_watch import ParentWatch

STARTING = 60.0
"""Seconds that a host may take to listen: it has to import torch."""


class HostActor:
    """Starts a host process on the machine on which Ray has placed it; the host ends with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, versions: dict[str, str]) -> None:
        """Raises `ClusterError` if versions differ from those of the machine that trains."""
        check_versions(versions, socket.gethostname())

    def start(self, key: bytes, folder: str, paths: list[str]) -> Any:
        """Starts the host, and returns the `HostAddress` where it listens."""
        name = socket.gethostname()
        self._process, self._control, place = start_host(key, node_address(), name, folder, paths)
        return place

    def is_alive(self) -> bool:
        """Tells whether the host runs."""
        return self._process is not None and self._process.poll() is None


def start_host(
    key: bytes, address: str, name: str, folder: str, paths: list[str], command: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[bytes], Connection, Any]:
    """Starts a host process, waits until it listens, and returns it, its control connection, and its `HostAddress`.

    It ends when the connection is closed. Raises RuntimeError if it does not come to listen.

    address: of the interface on which it listens.
    command: what is put before the command, such as one that enters another network.
    """
    from headrace.workers.remote.messages import HostAddress, HostConfig

    ours, theirs = Pipe(duplex=True)
    parent_watch = ParentWatch.for_child()
    with theirs:
        process = subprocess.Popen(
            [*command, sys.executable, "-m", "headrace.workers.remote.host_main", str(theirs.fileno())],
            pass_fds=[theirs.fileno(), *parent_watch.descriptors],
            stdin=subprocess.DEVNULL,
        )

    parent_watch.bind(process.pid)
    try:
        ours.send_bytes(pickle.dumps(HostConfig(key, address, name, folder, paths)))
        if not ours.poll(STARTING):
            raise RuntimeError(f"a host did not listen within {STARTING:g} s")
        port = pickle.loads(ours.recv_bytes())
    except (EOFError, OSError, RuntimeError) as error:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        code = process.wait()
        raise RuntimeError(f"a host could not be started on {name} (exit code {code}): {error}") from error

    return process, ours, HostAddress(address, port, key)


def node_address() -> str:
    """Returns the address at which the other machines of the cluster reach this one."""
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
