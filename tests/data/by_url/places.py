"""Servers of a bucket that are programs of their own: they can be stopped, killed, and started on the same port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.demo.bucket_server import find_weed, status_of
from headrace.storage.locations import Location
from headrace.storage.stores.opening import open_store
from tests.servers import nginx, seaweed
from tests.servers.processes import end, free_ports, start

BUCKET = "open"
KINDS = ("nginx", "faulty", "seaweed")


class Place:
    """A server of a bucket."""

    def __init__(self, command: list[str], log: Path, answers: Callable[[], bool], base: str, options: Any) -> None:
        """base: what stands in front of the names of data, in their URLs."""
        self._command = command
        self._log = log
        self._answers = answers
        self._base = base
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._sent = 0
        self.start()

    def source_of(self, name: str) -> tuple[str, dict[str, Any]]:
        """Returns the URL of data, and the options with which they are opened."""
        return f"{self._base}/{name}", self._options

    def start(self) -> None:
        """Starts it, unless it runs; waits until it answers. One that is stopped goes on."""
        if self._process is None:
            self._process = start(self._command, self._log, self._answers)
        self.go_on()

    def stop(self) -> None:
        """Stops it: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends a stop."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills it: connections are reset, and others are refused."""
        self._sent = self.bytes_sent()
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)
        self._process = None

    def close(self) -> None:
        """Ends it."""
        if self._process is not None:
            end(self._process, 0.1)

    def bytes_sent(self) -> int:
        """Returns how many bytes it has written so far, also to its log."""
        if self._process is None:
            return self._sent
        for line in Path(f"/proc/{self._process.pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return self._sent + int(line.split()[1])
        return self._sent

    def _signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)


def _nginx_place(data: Path, room: Path, program: str) -> Place:
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    command = nginx.command_of(room, program, port, data)
    return Place(command, room / "log", lambda: nginx.ready(url), f"{url}/{BUCKET}", {})


def _faulty_place(data: Path, room: Path) -> Place:
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.servers.faulty", str(data), str(port)]
    options = {"endpoint": url, "skip_signature": True, "region": "us-east-1"}
    return Place(command, room / "log", lambda: status_of(f"{url}/") == 404, f"s3://{BUCKET}", options)


def _seaweed_place(data: Path, room: Path, program: str) -> Place:
    served = seaweed.served_from(room, program)
    options = {
        "endpoint": served.url,
        "access_key_id": seaweed.ACCESS_KEY,
        "secret_access_key": seaweed.SECRET_KEY,
        "region": "us-east-1",
    }
    place = Place(served.command, room / "log", served.answers, f"s3://{BUCKET}", options)
    status_of(f"{served.filer}/buckets/{BUCKET}/", method="POST")
    store = open_store(Location("s3", BUCKET, ""), options)
    for path in sorted((data / BUCKET).rglob("*")):
        if path.is_file():
            store.write(str(path.relative_to(data / BUCKET)), [path.read_bytes()])
    return place


@contextlib.contextmanager
def places(data: Path, root: Path, kinds: tuple[str, ...] = KINDS) -> Iterator[dict[str, Place]]:
    """Serves the folder `data/BUCKET` by each kind of server that is installed, until the block ends.

    root: for their files.
    """
    found: dict[str, Place] = {}
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            room = root / f"server-{kind}"
            room.mkdir()
            program = ""
            if kind == "nginx":
                program = nginx.find_nginx() or ""
            elif kind == "seaweed":
                program = find_weed() or ""

            if kind == "faulty":
                found[kind] = _faulty_place(data, room)
            elif program and kind == "nginx":
                found[kind] = _nginx_place(data, room, program)
            elif program:
                found[kind] = _seaweed_place(data, room, program)
            if kind in found:
                stack.callback(found[kind].close)
        yield found
