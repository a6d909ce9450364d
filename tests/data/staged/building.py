"""Builds of caches in processes that tests stop, interrupt and kill."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import resource
import select
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import headrace
from headrace import Staged, step
from headrace.core.files import atomic_file
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.staged import build, cache
from headrace.data.staged.build import looked_at
from tests.data.staged.pipelines import same

COUNT, PIECE = 120, 12
"""Samples, and how many of them make a piece."""

GATE = 53
"""A sample that is not looked at beforehand, in the middle of a piece."""

SERVER = multiprocessing.get_context("forkserver")
"""Starts processes that have imported everything already, and nothing else in common with this one."""

pyarrow.array(np.zeros(1))  # has it load what it loads late

CHANNEL: list[Any] = []
"""By which a process that a test has started says where it is."""


def stay_here() -> None:
    """Says that it is here, and waits for a signal, which may also come before the wait has begun."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    CHANNEL[0].send("here")
    select.select([reading], [], [])


class Marked:
    """A step that writes down which samples it ran on; at one of them it says that it is there, and stays."""

    def __init__(self, calls: str, factor: float = 2.0) -> None:
        self.calls, self.factor = calls, factor

    def fingerprint(self) -> str:
        return f"marked {self.factor}"

    def __call__(self, one: dict[str, Any]) -> dict[str, Any]:
        with open(self.calls, "a") as file:
            file.write(f"{one['id']}\n")
        if os.environ.get("GATE") == str(one["id"]):
            stay_here()
        return {**one, "x": one["x"] * self.factor, "text": "t" * one["id"]}


def drawn(one: dict[str, Any]) -> dict[str, Any]:
    """Draws from each generator."""
    numbers = [headrace.rng().random(), np.random.random()]
    return {**one, "drawn": np.array(numbers)}


def source(count: int = COUNT) -> list[dict[str, Any]]:
    return [{"id": number, "x": np.arange(number % 4, dtype=np.float32)} for number in range(count)]


def small_pieces(workers: int, *, crowd: bool = True) -> None:
    """Makes pieces of a few samples; `workers` processes make them, even where one would do."""
    plain = build.plan_work

    def planned(*arguments: Any, **words: Any) -> Any:
        work, seconds = plain(*arguments, **words)
        work.piece, work.block = PIECE, 5
        return work, seconds

    for module in (build, sys.modules["headrace.data.staged.staged"]):
        module.plan_work = planned  # type: ignore[attr-defined]
    build.cores = lambda: workers
    build.ALONE = -1.0 if crowd else 1e9


def steps(calls: Path, *, random: bool, factor: float = 2.0) -> list[Any]:
    more = [step(drawn, random=True)] if random else []
    return [Marked(str(calls), factor), *more]


def opened(root: Path, *, factor: float = 2.0, random: bool = False, name: str = "c", **words: Any) -> Staged:
    """Opens the cache of a case, or builds it."""
    return Staged(source(), steps(root / "calls", random=random, factor=factor), cache=root / name,
                  freeze_random=random, **words)  # fmt: skip


def stop_before(function: Any, at: int) -> Any:
    """Returns the function, which in call number `at` says that it is there, and waits for a line."""
    calls: list[int] = []

    def stopping(*arguments: Any, **words: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            CHANNEL[0].send("here")
            CHANNEL[0].recv()
        return function(*arguments, **words)

    return stopping


def child(channel: Any, root: Path, given: dict[str, Any]) -> None:
    """What a process does that a test has started."""
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)
    warnings.simplefilter("error")
    CHANNEL[:] = [channel]
    small_pieces(given["workers"], crowd=given["workers"] > 1)
    if given["limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given["limit"], given["limit"]))
    if given["gate"] is not None:
        os.environ["GATE"] = str(given["gate"])
    where, at = given["stop"]
    if where == "keep":
        cache.StagingArea.keep = stop_before(cache.StagingArea.keep, at)  # type: ignore[method-assign]
    elif where == "commit":
        AtomicTarget.commit = stop_before(AtomicTarget.commit, at)  # type: ignore[method-assign]
    elif where == "begin":
        stop_before(int, 1)()
    elif where == "sync_folder":  # called once a file has its name
        atomic_file.sync_folder = stop_before(atomic_file.sync_folder, at)
    elif where:  # a function that the cache calls
        setattr(cache, where, stop_before(getattr(cache, where), at))
    try:
        made = opened(root, factor=given["factor"], random=given["random"], stale="rebuild")
        channel.send(f"opened {len(made)} {digest(made)}")
    except BaseException as error:  # noqa: BLE001 - told to the test
        channel.send(f"{type(error).__name__} {error}")
        raise SystemExit(1) from None


def digest(made: Staged) -> str:
    """Returns a text that is the same for the same samples."""
    told = hashlib.sha256()
    for one in made:
        for name, value in sorted(one.items()):
            told.update(f"{name} {getattr(value, 'dtype', type(value))} {np.shape(value)} ".encode())
            told.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return told.hexdigest()


class Child:
    """A process, in a session of its own, that opens a cache."""

    def __init__(self, root: Path, *, workers: int = 1, stop: tuple[str, int] = ("", 0), factor: float = 2.0,
                 random: bool = False, gate: int | None = None, limit: int = 0) -> None:  # fmt: skip
        given = {"workers": workers, "stop": stop, "factor": factor, "random": random, "gate": gate, "limit": limit}
        self._channel, theirs = SERVER.Pipe()
        self.process = SERVER.Process(target=child, args=(theirs, root, given))
        self.process.start()
        theirs.close()

    @property
    def number(self) -> int:
        """The number of the main process, and of the session."""
        assert self.process.pid is not None
        return self.process.pid

    def wait_until_there(self) -> None:
        told = self._channel.recv()
        if told != "here":
            pytest.fail(f"it ended before: {told}")

    def go_on(self) -> None:
        self._channel.send("go on")

    def end(self, number: int | None = None, *, alone: bool = False) -> tuple[int | None, str]:
        """Sends a signal to all its processes (or to the main one), or lets it go on; waits until it has ended."""
        if number is None:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                self.go_on()
        else:
            (os.kill if alone else os.killpg)(self.number, number)
        told = ""
        self.process.join(60)
        with contextlib.suppress(EOFError, ConnectionResetError):
            while self._channel.poll():
                told = self._channel.recv()
        return self.process.exitcode, told

    def running(self) -> list[int]:
        """Returns which of its processes still run."""
        return [number for number, state, _, session in processes() if session == self.number and state not in "ZX"]

    def outlived(self) -> list[int]:
        """Returns which of its processes still run although they were given ten seconds to end."""
        for process in self.running():
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(process)
                select.select([descriptor], [], [], 10)
                os.close(descriptor)
        return self.running()

    def close(self) -> None:
        """Ends what a test that failed has left."""
        for process in self.running():
            os.kill(process, signal.SIGKILL)
        self.process.join()
        self._channel.close()


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Yields of each process its number, its state, its parent and its session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), words[0], int(words[1]), int(words[3])


def children() -> set[int]:
    """Returns the processes that this one has started, zombies too."""
    return {number for number, _, parent, _ in processes() if parent == os.getpid()}


def times_run(root: Path) -> Counter[int]:
    """Returns how often the step ran on each sample that is not looked at beforehand."""
    told = Counter(map(int, (root / "calls").read_text().split()))
    for number in looked_at(COUNT).tolist():
        told.pop(number, None)
    return told


def expected(factor: float = 2.0) -> str:
    """Returns the digest of what an undisturbed process has."""
    from headrace.data.staged.staged import unbuilt

    token = unbuilt.set(True)
    try:
        return digest(Staged(source(), Marked(os.devnull, factor)))
    finally:
        unbuilt.reset(token)


def left_in(folder: Path) -> list[str]:
    """Returns the names in a cache's folder, without what each cache has."""
    return sorted(one.name for one in folder.iterdir() if one.name not in ("staged.json", "lock"))


class Counting:
    """A step that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, one: Any) -> Any:
        self.calls += 1
        return one

    def fingerprint(self) -> str:
        return "counting"


def is_whole(staged: Any, expected: Any) -> bool:
    return len(staged) == len(expected) and all(same(staged[key], one) for key, one in enumerate(expected))
