"""A round of kills: two trainers with one cache between them, what is done to them, and what must hold behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.core.process.memory import process_tree
from headrace.storage.cache.maintenance import check
from tests.data.by_url.places import Place
from tests.data.by_url.trainers import Job
from tests.servers.parent import bound_to_this_process

ROOT = Path(__file__).parents[3]
EPOCHS = 3
TRAINERS = ("one", "other")
PATIENCE = 90.0
"""Seconds in which a round must come to its next line."""

BUDGET = 400_000
"""Bytes that a trainer announces and reads ahead."""


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that is done to the round at a moment."""

    moment: str
    """The trainer whose batches are counted, or "bytes": those that the server has sent."""
    amount: int
    victim: str
    """"trainer", "worker", "io", "server" or "stop": of the server."""
    trainer: str
    """Of the first three."""
    seconds: float
    """For which the server is stopped, or gone."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a round does; it follows from the seed and its number."""

    form: str
    data: str
    """The name under which data of this form lie."""
    place: str
    workers: int
    limit: int | None
    events: tuple[Event, ...]


# -- the trainers ------------------------------------------------------------------------------------------------------


class Finding(Exception):
    """Something that must not be."""


class Trainers:
    """The program that forks trainers, and what it says."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.data.by_url.trainers"]
        self.process = subprocess.Popen(
            bound_to_this_process(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        self._unread = b""
        self._lines: list[list[Any]] = []

    def begin(self, job: Job) -> None:
        """Has a job begin, or go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(dataclasses.asdict(job)).encode() + b"\n")
        self.process.stdin.flush()

    def next_line(self, patience: float) -> list[Any] | None:
        """Returns the next line; None if none comes in time. Raises `Finding` if the program is gone."""
        assert self.process.stdout is not None
        until = time.monotonic() + patience
        while not self._lines:
            # Not `select.select`, which takes no descriptors above 1,023.
            poll = select.poll()
            poll.register(self.process.stdout, select.POLLIN)
            ready = poll.poll(max(until - time.monotonic(), 0) * 1000)
            if not ready:
                return None
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                raise Finding("the program of the trainers has ended")
            *lines, self._unread = (self._unread + part).split(b"\n")
            self._lines += map(json.loads, lines)

        return self._lines.pop(0)

    def close(self) -> None:
        """Ends the program, and what it has started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def undisturbed(trainers: Trainers, form: str, source: Path, folder: Path) -> list[int]:
    """Returns the checksums of the batches of a run from local files."""
    folder.mkdir()
    trainers.begin(Job(form, str(source), {}, {}, form, 0, EPOCHS, str(folder), BUDGET))
    found = []
    while True:
        line = trainers.next_line(PATIENCE)
        if line is None:
            raise Finding(f"the undisturbed run of {form} hangs")
        if line[0] == "batch":
            found.append(line[3])
        elif line[0] == "ended":
            if line[2]:
                raise Finding(f"the undisturbed run of {form} ended with {line[2]}: {errors_in(folder)}")
            return found


def errors_in(folder: Path) -> str:
    """Returns the end of what a trainer has written to stderr."""
    return (folder / "errors").read_text(errors="replace")[-3000:]


# -- a round -----------------------------------------------------------------------------------------------------------


class Round:
    """One round, as it runs."""

    def __init__(self, plan: Plan, trainers: Trainers, place: Place, root: Path) -> None:
        self.plan = plan
        self.root = root
        self.cache = root / "cache"
        self.killed: Counter[str] = Counter()
        """What was killed, with how often; trainers, workers and the like that were not there are not counted."""
        self._trainers = trainers
        self._place = place
        self._pids: dict[str, int] = {}
        self._opened: set[str] = set()
        self._sessions: set[int] = set()
        self._batches: dict[str, dict[int, int]] = {name: {} for name in TRAINERS}
        self._left = list(plan.events)
        self._bytes_before = place.bytes_sent()
        self._back: list[tuple[float, str]] = []

    def run(self, expected: list[int]) -> None:
        """Runs until both trainers have ended. Raises `Finding`."""
        for name in TRAINERS:
            self._begin(name)

        running = set(TRAINERS)
        last_line = time.monotonic()
        while running:
            self._act()
            line = self._trainers.next_line(0.02)
            if line is None:
                if self._back:
                    last_line = time.monotonic()
                if time.monotonic() - last_line > PATIENCE:
                    raise Finding(f"it hangs: {self.stacks()}")
                continue

            last_line = time.monotonic()
            if self._hear(line, expected):
                running.discard(line[1])

        self._end_stops()
        for name in TRAINERS:
            if sorted(self._batches[name]) != list(range(len(expected))):
                raise Finding(f"{name} has delivered {len(self._batches[name])} batches, of {len(expected)}")

    def _hear(self, line: list[Any], expected: list[int]) -> bool:
        """Takes what the trainers' program says. Returns whether a trainer has done all."""
        what, name, *rest = line
        if what == "began":
            self._pids[name] = rest[0]
            self._sessions.add(rest[0])
        elif what == "opened":
            self._opened.add(name)
        elif what == "batch":
            self._take(name, *rest, expected)
        elif what == "ended":
            if not self._goes_on(name, rest[0]):
                return True
            self._begin(name)
        return False

    def _begin(self, name: str) -> None:
        plan = self.plan
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        source, options = self._place.source_of(plan.data)
        cache = {"cache_dir": str(self.cache), "cache_limit": plan.limit}
        job = Job(name, source, options, cache, plan.form, plan.workers, EPOCHS, str(folder), BUDGET)
        self._trainers.begin(job)

    def _take(self, name: str, number: int, crc: int, expected: list[int]) -> None:
        if crc != expected[number]:
            raise Finding(f"batch {number} of {name} is another one")
        if number not in self._batches[name] and number != len(self._batches[name]):
            raise Finding(f"batch {number} of {name} came behind {len(self._batches[name])} batches")
        self._batches[name][number] = crc

    def _goes_on(self, name: str, status: int) -> bool:
        """Notes the end of a trainer. Returns whether it was killed. Raises `Finding` if it ended with an error."""
        del self._pids[name]
        self._opened.discard(name)
        if status not in (0, -signal.SIGKILL):
            raise Finding(f"{name} ended with {status}: {errors_in(self.root / name)}")
        return status != 0

    # -- what is done to it --------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Does what is to be done by now."""
        now = time.monotonic()
        for moment, how in [back for back in self._back if back[0] <= now]:
            self._back.remove((moment, how))
            self._bring_back(how)

        for event in list(self._left):
            if event.moment == "bytes":
                reached = self._place.bytes_sent() - self._bytes_before
            else:
                reached = len(self._batches[event.moment])
            if reached >= event.amount and self._may(event):
                self._left.remove(event)
                self._do(event)

    def _may(self, event: Event) -> bool:
        """Tells whether an event may come now. Workers and I/O processes may be killed at any moment."""
        if event.trainer not in self._pids:
            return False
        if event.victim in ("worker", "io"):
            return True
        if self._back:
            return False
        # Whoever opens data gives up after 15 seconds.
        takes_long = event.seconds > 2.0 or (event.victim == "server" and self.plan.place == "seaweed")
        return not takes_long or self._opened == set(TRAINERS)

    def _do(self, event: Event) -> None:
        if event.victim == "stop":
            self._place.stop()
            self._back.append((time.monotonic() + event.seconds, "stop"))
        elif event.victim == "server":
            self._place.kill()
            self._back.append((time.monotonic() + event.seconds, "server"))
        elif not self._kill(event):
            return
        self.killed[event.victim] += 1

    def _kill(self, event: Event) -> bool:
        """Kills a process of a trainer. Returns whether there was one."""
        victims = [self._pids[event.trainer]]
        if event.victim != "trainer":
            victims = self._descendants(event.trainer, event.victim)
        if not victims:
            return False
        try:
            os.kill(victims[event.amount % len(victims)], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _bring_back(self, how: str) -> None:
        if how == "stop":
            self._place.go_on()
        else:
            self._place.start()

    def _end_stops(self) -> None:
        while self._back:
            moment, how = self._back.pop()
            time.sleep(max(moment - time.monotonic(), 0))
            self._bring_back(how)

    def _descendants(self, trainer: str, kind: str) -> list[int]:
        """Returns the workers of a trainer, or its I/O process."""
        found = []
        for pid in process_tree(self._pids[trainer])[1:]:
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"resource_tracker" in command:
                    continue
                if (b"headrace.storage.fetching.io_process" in command) == (kind == "io"):
                    found.append(pid)
        return found

    # -- what must hold behind it --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `Finding` if the cache is not whole, or something is left."""
        left = self._left_processes(10.0)
        if left:
            raise Finding(f"processes are left: {left}")
        for name in TRAINERS:
            files = [str(path) for path in (self.root / name / "tmp").iterdir()]
            if files:
                raise Finding(f"files are left: {files}")
            for line in (self.root / name / "errors").read_text(errors="replace").splitlines():
                if "Traceback" in line or "Error" in line or "leaked" in line:
                    raise Finding(f"{name} has said: {errors_in(self.root / name)}")

        checked = check(self.cache, lambda done, total: None)
        if checked.problems:
            raise Finding(f"the cache is damaged: {checked.problems}")
        # Who has checked it was alone, and has removed what killed processes left.
        kinds = (".blocks", "headrace-cache")
        files = [str(path) for path in self.cache.rglob("*") if path.is_file() and not path.name.endswith(kinds)]
        # The file of the job that has checked it stays until the next use.
        if len(files) > 1 or any("/jobs/" not in file for file in files):
            raise Finding(f"files are left in the cache: {files}")
        if self.plan.limit is not None:
            used = sum(path.stat().st_blocks * 512 for path in self.cache.rglob("*.blocks"))
            if used > self.plan.limit * 1.1 + (1 << 20):
                raise Finding(f"the cache takes {used:,} bytes, and may take {self.plan.limit:,}")

    def _left_processes(self, patience: float) -> list[str]:
        """Waits for what the trainers have started. Returns what runs on."""
        until = time.monotonic() + patience
        while True:
            found = list(self._processes())
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.02)

    def _processes(self) -> Iterator[str]:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) in self._sessions:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield f"{entry.name} {fields[0]} {command}"

    def stacks(self) -> str:
        """Returns where the trainers and their workers are."""
        self._end_stops()
        for name in list(self._pids):
            for pid in [self._pids[name], *self._descendants(name, "worker")]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        return "\n".join(f"{name}: {errors_in(self.root / name)}" for name in TRAINERS)

    def close(self) -> None:
        """Kills what runs."""
        self._end_stops()
        with contextlib.suppress(Finding):
            while self._pids:
                for pid in self._pids.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                line = self._trainers.next_line(10)
                if line is None:
                    return
                if line[0] == "began":
                    self._pids[line[1]] = line[2]
                elif line[0] == "ended":
                    del self._pids[line[1]]
