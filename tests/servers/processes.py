"""Programs that serve: started on free ports of this machine, waited for, and ended by their process id."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.servers.parent import bound_to_this_process

PATIENCE = 60.0
"""Seconds that a server may take until it answers."""

FIRST = 20000
"""The first port that is given."""

SHARES = 4
SHARE = 3000
"""Ports of each process of a parallel run."""

_GIVEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on, each given once in this process.

    They lie below those that the system gives to clients, so that no connection takes one of them meanwhile. Servers
    that open another port at a fixed distance get room for that.
    """
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            break
        if port not in _GIVEN and _is_free(port):
            _GIVEN.add(port)
            found.append(port)

    return found


def _candidates() -> Iterator[int]:
    """Yields ports of a share that no other process of a parallel run of the tests looks at.

    A port that was given to another test is free until its server listens, and it is taken while somebody looks.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST + number % SHARES * SHARE
    begin = os.getpid() * 37 % SHARE
    for step in range(SHARE):
        yield first + (begin + step) % SHARE


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listens(address: int | Path) -> bool:
    """Tells whether somebody listens: at a port of this machine, or at the path of a Unix socket."""
    if isinstance(address, int):
        family = socket.AF_INET
        target: tuple[str, int] | str = ("127.0.0.1", address)
    else:
        family = socket.AF_UNIX
        target = str(address)

    with socket.socket(family) as probe:
        probe.settimeout(1)
        return probe.connect_ex(target) == 0


@contextlib.contextmanager
def program(
    command: list[str], log: Path, answers: Callable[[], bool], grace: float = 10.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program from when it answers until the block ends; then it gets SIGTERM, and SIGKILL if it stays.

    grace: seconds between the two. Raises as `start`.
    """
    process = start(command, log, answers)
    try:
        yield process
    finally:
        end(process, grace)


def start(command: list[str], log: Path, answers: Callable[[], bool]) -> subprocess.Popen[bytes]:
    """Starts a program, and returns it when it answers. It ends with this process in any case, also a killed one.

    Raises `RuntimeError` with the end of its log, where it ends or does not answer in time.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            bound_to_this_process(command), stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not serve: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
    except BaseException:
        end(process, 0.0)
        raise
    return process


def end(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """Ends a program, stopped or not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
