"""One loader's part of a scene, in a process of its own: what it returned, or how it ended, and what it cost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.core.process.memory import PeakMemory
from headrace.storage.fetching.io_client import remove_abandoned

PRELOADED = [
    "headrace.demo.party",
    "headrace.loader.dataloader",
    "headrace.transforms",
    "torch.utils.data",
    "torchdata.stateful_dataloader",
]
"""Modules that a party finds imported, where they are installed: importing torch takes seconds."""

PATIENCE = 5.0
"""Seconds for which the end of a killed group is waited for."""


@dataclass(frozen=True)
class PartyOutcome:
    """How a party ended.

    value: what its function returned; None if it raised or was killed. error: type and first line of what it raised.
    signal: the name of the signal that killed it. seconds: from its first line to its last. cpu_seconds: of CPU time,
    of its workers too. peak_bytes: of memory, of its workers too, shared pages counted once.
    """

    value: Any = None
    error: str = ""
    signal: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    told: list[Any] = field(default_factory=list)
    """What it said with `tell`, also before it was killed."""


Tell = Callable[[Any], None]


def run(function: Callable[..., Any], *arguments: Any, memory: bool = False) -> PartyOutcome:
    """Runs `function(tell, *arguments)` in a new process, waits for its end, and kills what it left behind.

    function: of a module, since it is pickled. memory: whether its memory is watched, which costs time.
    """
    # One server imports torch, and its children have it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process: Any = context.Process(target=_play, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    watch = PeakMemory(process.pid)
    told: list[Any] = []
    ended: dict[str, Any] = {}
    try:
        with contextlib.ExitStack() as watching:
            if memory:
                watching.enter_context(watch)
            for kind, value in _received(ours, process.sentinel):
                if kind == "told":
                    told.append(value)
                else:
                    ended = value
            process.join()
    finally:
        # A party that was killed, or Ctrl-C here, leaves workers: they are in its process group.
        _kill_group(process.pid)
        process.join()
        ours.close()
        _remove_what_it_left(process.pid)

    name = ""
    if process.exitcode < 0:
        name = signal.Signals(-process.exitcode).name
    return PartyOutcome(signal=name, peak_bytes=watch.peak, told=told, **ended)


def _received(connection: Connection, sentinel: int) -> Iterator[tuple[str, Any]]:
    """Yields what comes until the process has ended. Its workers hold the pipe too, and may outlive it for seconds."""
    while True:
        ready = wait([connection, sentinel])
        try:
            while connection.poll():
                yield connection.recv()
        except (EOFError, ConnectionResetError):
            return
        if sentinel in ready:
            return


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove_what_it_left(pid: int) -> None:
    """Removes the folders of sockets of a killed group: nobody in it could. Its processes end one by one."""
    over = time.monotonic() + PATIENCE
    while time.monotonic() < over:
        try:
            os.killpg(pid, 0)
        except (ProcessLookupError, PermissionError):
            break
        time.sleep(0.01)
    remove_abandoned()


def _play(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """What the new process runs."""
    os.setpgid(0, 0)
    # Otherwise this process would start its workers as it was started itself.
    multiprocessing.set_start_method("fork", force=True)
    _be_quiet()
    began = time.perf_counter()
    ended: dict[str, Any] = {}
    try:
        ended["value"] = function(lambda value: connection.send(("told", value)), *arguments)
    except Exception as error:  # noqa: BLE001 - what a loader raises is what a scene shows
        ended["error"] = _first_words(error)
    ended["seconds"] = time.perf_counter() - began
    ended["cpu_seconds"] = _cpu_seconds()
    connection.send(("ended", ended))
    connection.close()


def _be_quiet() -> None:
    """Sends what loaders and workers print to nowhere: a scene shows what matters of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _first_words(error: BaseException) -> str:
    """Returns the type and the last line of an error; of a worker's, the last line of its own traceback."""
    lines = str(error).strip().splitlines() or [""]
    last = lines[-1].strip()
    if ": " in last and lines[0].startswith("Caught "):
        return last
    return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")


def _cpu_seconds() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total
