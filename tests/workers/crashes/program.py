"""The program that crashes: a loader made as a cell of the table says, two epochs of it, and what was seen."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace import DataLoader, OnError
from headrace.core.process.memory import process_tree
from headrace.testing import Attempts, Exit, Fault, FaultyCall, Hang, Kill, LimitMemory, Raise, Segfault
from headrace.testing.belongings import command_of, parent_of
from tests.workers.crashes import data
from tests.workers.crashes.running import Seen, session

Place = Literal[
    "constructor", "worker start", "worker_init_fn", "__getitem__", "__getitems__", "collate_fn", "pickling",
    "unpickling", "user's loop", "shutdown",
]  # fmt: skip
Kind = Literal["raise", "exit", "segfault", "SIGKILL", "hang", "memory limit"]
Backend = Literal["inline", "thread", "fork", "spawn"]
Way = Literal["always", "once", "replace", "skip", "timeout", "sample_timeout"]

FAULTS: dict[Kind, Fault] = {
    "raise": Raise(ValueError("on purpose")),
    "exit": Exit(23),
    "segfault": Segfault(),
    "SIGKILL": Kill(),
    "hang": Hang(),
    "memory limit": LimitMemory(),
}

SAMPLE_TIMEOUT = 0.5
TIMEOUTS: dict[Backend, int] = {"thread": 1, "fork": 1, "spawn": 8}
"""In seconds. With spawn the time to import torch counts."""

OF_SAMPLES: tuple[Place, ...] = ("__getitem__", "__getitems__")


@dataclass(frozen=True)
class Cell:
    """One field of the table: where, what, with which workers, and in which way.

    Ways: "always", each time; "once", only the first time; "replace" and "skip", always, with that `on_error`;
    "timeout" and "sample_timeout", always, with that limit in the place of the usual one.
    """

    place: Place
    fault: Kind
    backend: Backend
    way: Way = "always"

    def __str__(self) -> str:
        return f"{self.place}, {self.fault}, {self.backend}, {self.way}"

    def __call__(self, say: int, folder: Path) -> Seen:
        """Runs the program."""
        return run(self, say, folder)

    @property
    def in_processes(self) -> bool:
        """Whether there are worker processes."""
        return self.backend in ("fork", "spawn")

    @property
    def in_users_process(self) -> bool:
        """Whether the fault happens in the process of the user, and in its main thread."""
        if self.place == "constructor":
            return self.backend != "spawn"
        return self.backend == "inline" or self.place in ("unpickling", "user's loop")

    @property
    def is_limited(self) -> bool:
        """Whether `sample_timeout` interrupts the user's own thread."""
        return self.backend == "inline" and self.place in (*OF_SAMPLES, "collate_fn")

    @property
    def leaves_threads(self) -> bool:
        """Whether a thread hangs, which nobody can end."""
        return self.fault == "hang" and self.backend == "thread"

    @property
    def has_next_epoch(self) -> bool:
        """Whether there is a second epoch to see: not after a hang, nor where no loader could be made."""
        if self.fault == "hang":
            return self.place == "shutdown"
        return not (self.place == "constructor" and self.in_users_process)


def run(cell: Cell, say: int, folder: Path) -> Seen:
    """Goes through two epochs, and returns what was seen."""
    with Attempts() as attempts:
        fault = FAULTS[cell.fault]
        if cell.fault == "hang" and cell.in_users_process and not cell.is_limited:
            fault = data.SayAndHang(say)
        if cell.place == "shutdown" and cell.backend != "inline":
            fault = data.AtTheGate(folder, fault)
        seen = Seen()
        try:
            loader = make_loader(cell, fault, attempts)
        except BaseException as error:  # noqa: BLE001 - what is looked for
            report(seen, error)
            return seen
        loop = FaultyCall(None, fault, calls={1}, attempts=attempts) if cell.place == "user's loop" else None
        epoch(loader, seen, loop, fault if isinstance(fault, data.AtTheGate) else None)
        if cell.has_next_epoch:
            seen.again = Seen()
            epoch(loader, seen.again, None, None)
    return seen


def epoch(loader: Any, seen: Seen, loop: Any, gate: data.AtTheGate | None) -> None:
    """Goes through an epoch; with `gate` only to the first batch, and opens it as the iterator goes."""
    before = loader.faults
    try:
        for batch in loader:
            seen.batches.append(data.numbers_of(batch))
            if loop is not None:
                loop()
            if gate is not None:
                gate.open()
                break
    except BaseException as error:  # noqa: BLE001 - what is looked for
        report(seen, error)
    after = loader.faults
    seen.replaced = [(bad.key, bad.action) for bad in after.records[len(before.records) :]]
    seen.restarts = after.restarts - before.restarts
    gc.collect()  # an exception may hold itself, and so the iterator
    seen.workers = still_working()


def report(seen: Seen, error: BaseException) -> None:
    """Writes down an exception."""
    seen.error = type(error).__name__
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        parts += [str(cause), *getattr(cause, "__notes__", [])]
        cause = cause.__cause__
    seen.text = "\n".join(parts)


def workers() -> list[Any]:
    """Returns the threads and processes that work for loaders, without the helpers that last longer."""
    own = os.getpid()
    children = [pid for pid in process_tree(own) if parent_of(pid) == own]
    helpers = {pid for pid in children if "from multiprocessing." in command_of(pid)}
    processes = set(session(own)) - helpers - {own}
    return [*processes, *(one for one in threading.enumerate() if one.name.startswith("pt_data_worker"))]


def still_working() -> int:
    """Returns how many threads and processes work for loaders, after a while if there are any."""
    ended = threading.Event()
    for _ in range(20):
        if not workers():
            return 0
        ended.wait(0.1)
    return len(workers())


def make_loader(cell: Cell, fault: Fault, attempts: Attempts) -> Any:
    """Returns a loader in which the fault happens at the place."""
    times = 1 if cell.way == "once" or cell.place == "shutdown" else None
    call = FaultyCall(None, fault, times=times, attempts=attempts)
    options: dict[str, Any] = {}
    dataset: Any = data.Numbers()
    if cell.place == "constructor":
        dataset = data.FrailOnArrival(call) if cell.backend == "spawn" else data.FrailAtBirth(call)
    elif cell.place == "worker start":
        dataset = data.FrailStream(call)
    elif cell.place == "worker_init_fn":
        options["worker_init_fn"] = data.Init(call)
    elif cell.place == "__getitem__" or (cell.place == "shutdown" and cell.backend != "inline"):
        dataset = data.faulty(dataset, fault, times, attempts)
    elif cell.place == "__getitems__":
        dataset = data.faulty(data.Together(), fault, times, attempts)
    elif cell.place == "collate_fn":
        options["collate_fn"] = data.collates_with(fault, times, attempts)
    elif cell.place in ("pickling", "unpickling"):
        options["collate_fn"] = data.Travels("pickle" if cell.place == "pickling" else "unpickle", call)
    return DataLoader(dataset, batch_size=data.BATCH, **options, **how(cell))


def how(cell: Cell) -> dict[str, Any]:
    """Returns the loader's arguments but for the data."""
    options: dict[str, Any] = {"backend": "thread" if cell.backend == "thread" else "process"}
    if cell.backend != "inline":
        options["num_workers"] = 2
    if cell.in_processes:
        options["multiprocessing_context"] = cell.backend
    action = cell.way if cell.way in ("replace", "skip") else "raise"
    timeout = None
    if cell.fault == "hang" and cell.place not in ("shutdown", "user's loop"):
        by_sample = cell.place in OF_SAMPLES or cell.backend == "inline"
        if cell.way == "sample_timeout" or (by_sample and cell.way != "timeout"):
            timeout = SAMPLE_TIMEOUT
        else:
            options["timeout"] = TIMEOUTS[cell.backend]
    options["on_error"] = OnError(action, timeout=timeout)
    return options
