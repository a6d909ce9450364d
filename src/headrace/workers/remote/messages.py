"""What a proxy and a host say to each other, over a `Wire`.

1. The proxy sends "hello" with a `Hello`. The host answers "welcome" with its clock, or "refused" with a text.
2. If the host needs the worker spec, and no other host of its machine has it, it says "send spec". The proxy sends
   "spec": its manifest, and its bytes as one raw buffer. While another host receives it, this one says "beat".
3. The host starts a worker process and says "started" with its process id; "refused" if the spec cannot be loaded.
4. The proxy sends "request" (a `RemoteRequest`), and the host answers each task with "result" (a `RemoteResult`; raw
   buffers: the header of the batch, and the used bytes of each slot). "beat" carries what the worker does.
5. "ask stacks" is answered with "stacks" once the worker has written them down. "died" is the last message of a host
   whose worker has ended by itself.

Either side ends the connection when it needs the other no longer; the host then ends the worker.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.epoch.start import EpochStart
from headrace.telemetry.stopwatch import Times


class Hello(NamedTuple):
    """How a proxy introduces itself, and which worker it wants."""

    versions: dict[str, str]
    digest: str
    """Of the worker spec."""
    worker_id: int
    workers: int
    original_errors: bool
    begin: EpochStart
    epoch: int


class Welcome(NamedTuple):
    """What the host answers."""

    host: str
    clock: float
    """`time.perf_counter()` there."""


class RemoteRequest(NamedTuple):
    """The part of a `Request` that is for another machine."""

    epoch: int
    begin: EpochStart | None
    tasks: list[tuple[int, int, Any]]


class RemoteResult(NamedTuple):
    """The part of a `Result` that comes from another machine."""

    epoch: int
    task: int
    status: str
    buffers: list[tuple[int, int, int]]
    times: Times
    seen: list[tuple[str, str, int]]
    drew: bool


class Death(NamedTuple):
    """How a worker ended by itself."""

    exitcode: int | None
    activity: list[int]
    stacks: str


class HostConfig(NamedTuple):
    """What a host is told by the process that starts it."""

    key: bytes
    address: str
    """Of the network interface on which it listens."""
    name: str
    """Of this machine, for messages."""
    folder: str
    """In which the trainer runs; the worker runs in the same one, where there is one."""
    paths: list[str]
    """Where the trainer looks for modules; the worker looks there, too, behind its own places."""


class HostAddress(NamedTuple):
    """Where a host listens, and the key that opens its door."""

    address: str
    port: int
    key: bytes
