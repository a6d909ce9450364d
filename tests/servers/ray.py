"""A Ray cluster of two nodes on this machine, in a process of its own, that leaves nothing behind.

`python -m tests.servers.ray FILE` starts it, writes its address into FILE, and ends it at SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import processes

STORE_BYTES = 80 << 20
"""Memory for objects of each node."""

NODES = 2
"""Each with one CPU."""


MARK = "HEADRACE_TEST_CLUSTER"

WITHOUT_TOKEN = {"RAY_AUTH_MODE": "disabled"}
"""Ray would write a token into the home folder of the user."""


@dataclass(frozen=True)
class RayCluster:
    """A cluster that runs."""

    address: str
    folder: Path
    """Where its nodes keep their files."""

    @property
    def variables(self) -> dict[str, str]:
        """What a program needs to find it."""
        return {"RAY_ADDRESS": self.address, **WITHOUT_TOKEN}

    def processes(self) -> list[int]:
        """Returns the processes of its nodes, those that run tasks too."""
        return processes_of(self.folder)


@contextlib.contextmanager
def running() -> Iterator[RayCluster]:
    """Runs a cluster. At the end its processes are gone: asked to end, and then killed, by their numbers."""
    with own_folder() as folder:
        told = folder / "address"
        command = [sys.executable, "-m", "tests.servers.ray", str(told)]
        with processes.program(command, folder / "log", told.is_file, 30.0):
            yield RayCluster(told.read_text(), folder)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Makes a folder for a cluster. At the end its processes are killed, by their numbers, and it is removed."""
    # Ray puts sockets there, whose paths may have a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="hr-ray-", dir="/tmp"))
    try:
        yield folder
    finally:
        for number in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def disconnect() -> None:
    """Has this process leave the cluster, if it is connected to one."""
    if ray := sys.modules.get("ray"):
        ray.shutdown()


def variables_for(folder: Path) -> dict[str, str]:
    """Returns what a program needs that starts a cluster in a folder."""
    return {"RAY_TMPDIR": str(folder), MARK: str(folder), **WITHOUT_TOKEN}


def processes_of(folder: Path) -> list[int]:
    """Returns the processes of a cluster, by a variable that they inherit: nobody else's folder has that name."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in _variables(entry) or mark in _variables(entry.parent / _parent_of(entry)):
                    found.append(int(entry.name))

    return found


def _variables(process: Path) -> list[bytes]:
    return (process / "environ").read_bytes().split(b"\0")


def _parent_of(process: Path) -> str:
    """Returns the number of a parent: processes that have a title of their own may have lost their variables."""
    return (process / "stat").read_text().rpartition(")")[2].split()[1]


def main(told: Path) -> None:
    """Runs a cluster until SIGTERM."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ |= variables_for(told.parent)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    from ray.cluster_utils import Cluster

    words: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**words, "include_dashboard": False})
    for _ in range(NODES - 1):
        cluster.add_node(**words)

    aside = told.with_name("address-new")
    aside.write_text(cluster.address)
    aside.rename(told)
    signal.sigwait([signal.SIGTERM])
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
