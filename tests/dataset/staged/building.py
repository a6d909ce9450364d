"""Builds of caches in processes that tests stop, interrupt and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import Staged, step
from headrace.dataset.staged import build, cache
from headrace.dataset.staged.build import looked_at

COUNT, PIECE = 120, 12
"""Samples, and how many of them make a piece."""

GATE = 53
"""A sample that is not looked at beforehand, in the middle of a piece."""

ROOT = Path(__file__).parents[3]


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
            print("here", flush=True)
            signal.pause()
        if os.environ.get("FAIL") == str(one["id"]):
            raise RuntimeError("told to fail")
        return {**one, "x": one["x"] * self.factor, "text": "t" * one["id"]}


def drawn(one: dict[str, Any]) -> dict[str, Any]:
    """Draws from each generator."""
    import headrace

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

    for module in (build, sys.modules["headrace.dataset.staged.staged"]):
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
            print("here", flush=True)
            sys.stdin.readline()
        return function(*arguments, **words)

    return stopping


def child(root: str, workers: str, where: str, at: str, factor: str, random: str) -> None:
    """What a process does that a test has started."""
    small_pieces(int(workers), crowd=int(workers) > 1)
    number = int(at)
    if where == "keep":
        cache.Room.keep = stop_before(cache.Room.keep, number)  # type: ignore[method-assign]
    elif where == "assemble":
        cache.assemble = stop_before(cache.assemble, number)
    elif where == "note":
        cache.write_note = stop_before(cache.write_note, number)
    elif where == "exchange":
        cache.sync_folder = stop_before(cache.sync_folder, number)
    elif where == "begin":
        print("here", flush=True)
        sys.stdin.readline()
    made = opened(Path(root), factor=float(factor), random=random == "True", stale="rebuild")
    print(f"opened {len(made)} {digest(made)}", flush=True)


def digest(made: Staged) -> str:
    """Returns a text that is the same for the same samples."""
    import hashlib

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
        code = "from tests.dataset.staged import building; import sys; building.child(*sys.argv[1:])"
        if limit:
            code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); {code}"
        given = [str(root), str(workers), stop[0], str(stop[1]), str(factor), str(random)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        space = {**os.environ, "PYTHONPATH": str(ROOT)} | ({} if gate is None else {"GATE": str(gate)})
        self.process = subprocess.Popen([sys.executable, "-W", "error", "-c", code, *given], **pipes, text=True,
                                        start_new_session=True, env=space)  # fmt: skip

    def wait_until_there(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != "here\n":
            pytest.fail(f"it ended before: {line}{self.end()}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, number: int | None = None, *, alone: bool = False) -> tuple[int, str]:
        """Sends a signal to all its processes (to the main one), and waits until it has ended."""
        if number is not None and alone:
            self.process.send_signal(number)
            return self.process.wait(60), ""
        if number is not None:
            os.killpg(self.process.pid, number)
        out, error = self.process.communicate("\n" if number is None else None, timeout=60)
        return self.process.returncode, out + error

    def running(self) -> list[int]:
        """Returns which of its processes still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if words[3] == str(self.process.pid) and words[0] not in "ZX":
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Ends what a test that failed has left."""
        for process in self.running():
            os.kill(process, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


def times_run(root: Path) -> Counter[int]:
    """Returns how often the step ran on each sample that is not looked at beforehand."""
    told = Counter(map(int, (root / "calls").read_text().split()))
    for number in looked_at(COUNT).tolist():
        told.pop(number, None)
    return told


def expected(factor: float = 2.0) -> str:
    """Returns the digest of what an undisturbed process has."""
    from headrace.dataset.staged.staged import unbuilt

    token = unbuilt.set(True)
    try:
        return digest(Staged(source(), Marked(os.devnull, factor)))
    finally:
        unbuilt.reset(token)


def left_in(folder: Path) -> list[str]:
    """Returns the names in a cache's folder, without what each cache has."""
    return sorted(one.name for one in folder.iterdir() if one.name not in ("staged.json", "lock"))
