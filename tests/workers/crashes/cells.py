"""The crash table: what the user of a loader sees, for every place, fault and kind of worker.

`TABLE` is read as place -> workers -> fault -> outcome. `FURTHER` has those of other ways: a fault that happens once,
other values of `on_error`, the other limit for a hang.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.workers.crashes.data import KEY
from tests.workers.crashes.program import SAMPLE_TIMEOUT, TIMEOUTS, Backend, Cell, Kind, Place, Way
from tests.workers.crashes.running import Ending, Seen

OTHER = -1
"""Stands for any sample but the bad one."""

ALL = [[0, 1], [2, 3], [4, 5], [6, 7]]
BEFORE = ALL[:2]
REPLACED = [[0, 1], [2, 3], [4, OTHER], [6, 7]]
OF_TWO_STREAMS = [[0, 1], [4, 5], [2, 3], [6, 7]]


@dataclass(frozen=True)
class Outcome:
    """What is seen in the first epoch, and in the next one, which is the same unless `again` says otherwise."""

    batches: list[list[int]] | None
    """None: the user's process does not live to tell."""
    hasty: bool = False
    """Whether fewer batches may have come: the error does not wait for batches that others are making."""
    error: str | None = None
    says: tuple[str, ...] = ()
    """What the error, its notes and its causes must contain."""
    exitcode: int = 0
    restarts: int | None = 0
    """Workers that are replaced. None: as it comes, where several die at the same time."""
    replaced: bool = False
    """Whether the bad sample is replaced, and that is recorded."""
    again: Outcome | None = None

    def differences(self, cell: Cell, ending: Ending) -> list[str]:
        """Returns what is otherwise than it should be."""
        found = [f"left behind: {one}" for one in ending.left]
        if ending.exitcode is None:
            return ["it hangs", *found]
        if ending.exitcode != self.exitcode:
            found.append(f"exit code {ending.exitcode} instead of {self.exitcode}")
        if (ending.seen is None) != (self.batches is None):
            untold = f"it did not live to tell, and wrote: {ending.noise}"
            found.append(untold if ending.seen is None else "it lived to tell")
        if ending.seen is not None:
            found += self._compare(ending.seen)
            if ending.seen.workers and not cell.leaves_threads:
                found.append(f"{ending.seen.workers} workers after the loop")
            if cell.has_next_epoch:
                again = ending.seen.again or Seen()
                found += [f"next epoch: {line}" for line in (self.again or self)._compare(again)]
        return found

    def _compare(self, seen: Seen) -> list[str]:
        found = []
        expected = self.batches or []
        if not _alike(seen.batches, expected[: len(seen.batches)] if self.hasty else expected):
            found.append(f"batches {seen.batches} instead of {self.batches}")
        if seen.error != self.error:
            found.append(f"{seen.error} instead of {self.error}: {seen.text}")
        found += [f"the error does not say {text!r}: {seen.text}" for text in self.says if text not in seen.text]
        if self.restarts is not None and seen.restarts != self.restarts:
            found.append(f"{seen.restarts} workers replaced instead of {self.restarts}")
        if seen.replaced != ([(KEY, "replace")] if self.replaced else []):
            found.append(f"samples replaced: {seen.replaced}")
        return found


def _alike(seen: list[list[int]], expected: list[list[int]]) -> bool:
    if [len(batch) for batch in seen] != [len(batch) for batch in expected]:
        return False
    pairs = (
        (ours, theirs) for one, two in zip(seen, expected, strict=True) for ours, theirs in zip(one, two, strict=True)
    )
    return all(theirs == ours if theirs != OTHER else ours != KEY for ours, theirs in pairs)


# -- outcomes --------------------------------------------------------------------------------------------------------

ARRIVE = Outcome(ALL)
ONE_ARRIVES = Outcome(ALL[:1], again=ARRIVE)

SAMPLE = f"loading the sample with key {KEY}"
BATCH = f"loading the batch with keys {KEY - 1}, {KEY}"
COLLATING = f"collating the batch with keys {KEY - 1}, {KEY}"
SENDING = f"sending the batch with keys {KEY - 1}, {KEY}"
STARTING = "starting"

HOW: dict[Kind, tuple[str, ...]] = {
    "exit": ("exited unexpectedly with exit code 23", "exited with code 23"),
    "segfault": (
        "is killed by signal: Segmentation fault",
        "was killed by signal 11 (SIGSEGV",
        "Its Python stacks were",
    ),
    "SIGKILL": ("is killed by signal: Killed", "was killed by signal 9 (SIGKILL"),
}
"""In whose words a death is told: torch's, and ours."""

ENDS: dict[Kind, Outcome] = {
    "exit": Outcome(None, exitcode=23),
    "segfault": Outcome(None, exitcode=-signal.SIGSEGV),
    "SIGKILL": Outcome(None, exitcode=-signal.SIGKILL),
}
"""The process of the user ends, as anybody's would."""

EVERY: dict[Kind, Outcome] = dict.fromkeys((*ENDS, "raise", "hang", "memory limit"), ARRIVE)


def raises(error: str, *says: str, batches: list[list[int]] = BEFORE, restarts: int | None = 0) -> Outcome:
    """Returns the outcome that an exception reaches the user."""
    return Outcome(batches, error=error, says=says, restarts=restarts)


def hasty(error: str, *says: str, batches: list[list[int]] = BEFORE, restarts: int | None = 0) -> Outcome:
    """Returns the outcome that the end of a worker reaches the user."""
    return replace(raises(error, *says, batches=batches, restarts=restarts), hasty=True)


def dies(doing: str, *, restarts: int | None, batches: list[list[int]] = BEFORE) -> dict[Kind, Outcome]:
    """Returns what is seen where workers die again and again while they are doing something."""
    told = ("DataLoader worker (pid(s) ", f" while it was {doing}.")
    return {fault: hasty("RuntimeError", *told, *how, batches=batches, restarts=restarts) for fault, how in HOW.items()}


def in_users_process(batches: list[list[int]], *says: str, again: Outcome | None = None) -> dict[Kind, Outcome]:
    """Returns what is seen where the fault happens in the main thread of the user's own process."""
    own = {
        "raise": raises("ValueError", "on purpose", *says, batches=batches),
        "hang": raises("KeyboardInterrupt", batches=batches),
        "memory limit": raises("MemoryError", *says, batches=batches),
    }
    return {**ENDS, **{fault: replace(outcome, again=again) for fault, outcome in own.items()}}  # type: ignore[dict-item]


def in_worker(kind: str, *says: str, batches: list[list[int]] = BEFORE) -> dict[Kind, Outcome]:
    """Returns what is seen of an exception in a worker."""
    where = f"in DataLoader worker {kind} 0"
    return {
        "raise": raises("ValueError", "on purpose", where, *says, batches=batches),
        "memory limit": raises("MemoryError", where, *says, batches=batches),
    }


def timed_out(backend: Backend, batches: list[list[int]] = BEFORE) -> dict[Kind, Outcome]:
    """Returns what is seen of a hang with `timeout`: torch's error, and where the workers are."""
    text = f"DataLoader timed out after {TIMEOUTS[backend]} seconds"
    return {"hang": raises("RuntimeError", text, "faults.py", "in wait", batches=batches)}


def too_slow(*says: str, restarts: int = 0) -> dict[Kind, Outcome]:
    """Returns what is seen of a hang with `sample_timeout`."""
    return {"hang": hasty("SampleTimeoutError", f"no progress for {SAMPLE_TIMEOUT} s", *says, restarts=restarts)}


STACKS = ("faults.py", "in wait")
HELPER_ENDED = "the process that starts DataLoader workers ended"
HELPER_FAILED = "DataLoader workers cannot be started. There the traceback was:"

# -- the table -------------------------------------------------------------------------------------------------------

Row = Mapping[str, Mapping[Kind, Outcome]]


def in_processes(row: Mapping[Kind, Outcome], batches: list[list[int]] = BEFORE) -> Row:
    """Returns what holds for forked and spawned workers, whose limits are not the same."""
    return {name: {**timed_out(name, batches), **row} for name in ("fork", "spawn")}


TABLE: dict[Place, Row] = {
    "constructor": {
        "inline thread fork": in_users_process([]),
        "spawn": {
            "raise": raises("RuntimeError", HELPER_FAILED, "ValueError: on purpose", batches=[]),
            "memory limit": raises("RuntimeError", HELPER_FAILED, "MemoryError", batches=[]),
            **{fault: raises("RuntimeError", HELPER_ENDED, batches=[]) for fault in ENDS},
            "hang": raises("RuntimeError", f"DataLoader timed out after {TIMEOUTS['spawn']} seconds", batches=[]),
        },
    },
    "worker start": {
        "inline": in_users_process([]),
        "thread": {**ENDS, **in_worker("thread", batches=[]), **timed_out("thread", [])},
        **in_processes({**dies(STARTING, restarts=None, batches=[]), **in_worker("process", batches=[])}, []),
    },
    "worker_init_fn": {
        "inline": EVERY,  # there is no worker
        "thread": {**ENDS, **in_worker("thread", batches=[]), **timed_out("thread", [])},
        **in_processes({**dies(STARTING, restarts=None, batches=[]), **in_worker("process", batches=[])}, []),
    },
    "__getitem__": {
        "inline": {**in_users_process(BEFORE, SAMPLE), **too_slow(SAMPLE)},
        "thread": {**ENDS, **in_worker("thread", SAMPLE), **too_slow(SAMPLE, *STACKS)},
        "fork spawn": {
            **dies(SAMPLE, restarts=2),
            **in_worker("process", SAMPLE),
            **too_slow(SAMPLE, *STACKS, restarts=1),
        },
    },
    "__getitems__": {
        "inline": {**in_users_process(BEFORE, BATCH), **too_slow(BATCH)},
        "thread": {**ENDS, **in_worker("thread", BATCH), **too_slow(BATCH, *STACKS)},
        "fork spawn": {  # once together with the others, then alone
            **dies(SAMPLE, restarts=3),
            **in_worker("process", BATCH),
            **too_slow(SAMPLE, *STACKS, restarts=2),
        },
    },
    "collate_fn": {
        "inline": {**in_users_process(BEFORE, COLLATING), **too_slow(COLLATING)},
        "thread": {**ENDS, **in_worker("thread", COLLATING), **timed_out("thread")},
        **in_processes({**dies(COLLATING, restarts=2), **in_worker("process", COLLATING)}),
    },
    "pickling": {
        "inline thread": EVERY,  # nothing is pickled
        **in_processes({**dies(SENDING, restarts=2), **in_worker("process", "prepared for sending")}),
    },
    "unpickling": {
        "inline thread": EVERY,
        "fork spawn": in_users_process(BEFORE),
    },
    "user's loop": {
        "inline thread fork spawn": in_users_process(BEFORE, again=ARRIVE),
    },
    "shutdown": {
        "inline": EVERY,  # nothing is made before it is asked for
        "thread": {**dict.fromkeys(EVERY, ONE_ARRIVES), **ENDS},
        "fork spawn": dict.fromkeys(EVERY, ONE_ARRIVES),
    },
}

SURVIVED = Outcome(ALL, restarts=1, again=ARRIVE)
STREAMS_SURVIVED = Outcome(OF_TWO_STREAMS, restarts=1, again=Outcome(OF_TWO_STREAMS))
LOST = Outcome(REPLACED, replaced=True)


def lost_after(restarts: int) -> Outcome:
    """Returns the outcome that a sample is replaced, after it has cost so many workers; the next time it costs none."""
    return replace(LOST, restarts=restarts, again=LOST)


PROCESSES = "fork spawn"
WORKERS = "thread fork spawn"
OF_MEMORY = raises("MemoryError")

FURTHER: dict[tuple[Place, Way, str], dict[Kind, Outcome]] = {
    # what happens once costs a worker and nothing else
    ("worker start", "once", PROCESSES): dict.fromkeys(ENDS, STREAMS_SURVIVED),
    ("worker_init_fn", "once", PROCESSES): dict.fromkeys(ENDS, SURVIVED),
    ("__getitem__", "once", PROCESSES): dict.fromkeys((*ENDS, "hang"), SURVIVED),
    ("__getitems__", "once", PROCESSES): dict.fromkeys((*ENDS, "hang"), SURVIVED),
    ("collate_fn", "once", PROCESSES): dict.fromkeys(ENDS, SURVIVED),
    ("pickling", "once", PROCESSES): dict.fromkeys(ENDS, SURVIVED),
    # a sample that kills or hangs is replaced; where no sample is to blame there is nothing to replace
    ("__getitem__", "replace", PROCESSES): {**dict.fromkeys(ENDS, lost_after(3)), "hang": lost_after(2)},
    ("__getitem__", "replace", "thread"): {"raise": LOST, "hang": lost_after(1)},
    ("__getitem__", "replace", "inline"): {"raise": LOST, "hang": LOST},
    ("__getitems__", "replace", PROCESSES): {**dict.fromkeys(ENDS, lost_after(4)), "hang": lost_after(3)},
    ("__getitems__", "replace", "thread"): {"raise": LOST, "hang": lost_after(2)},
    ("__getitems__", "replace", "inline"): {"raise": LOST, "hang": LOST},
    ("collate_fn", "replace", PROCESSES): {"raise": LOST, **dies(COLLATING, restarts=2)},
    ("pickling", "replace", PROCESSES): {"raise": raises("ValueError", "on purpose"), **dies(SENDING, restarts=2)},
    # want of memory is not the sample's fault
    ("__getitem__", "skip", "inline thread fork spawn"): {"memory limit": OF_MEMORY},
    ("__getitems__", "skip", "inline thread fork spawn"): {"memory limit": OF_MEMORY},
    ("collate_fn", "skip", "inline thread fork spawn"): {"memory limit": OF_MEMORY},
    ("pickling", "skip", PROCESSES): {"memory limit": OF_MEMORY},
    # the other limit
    ("__getitem__", "timeout", "thread"): timed_out("thread"),
    ("__getitem__", "timeout", "fork"): timed_out("fork"),
    ("__getitem__", "timeout", "spawn"): timed_out("spawn"),
    ("collate_fn", "sample_timeout", "thread"): too_slow(COLLATING, *STACKS),
    ("collate_fn", "sample_timeout", PROCESSES): too_slow(COLLATING, *STACKS, restarts=1),
    ("pickling", "sample_timeout", PROCESSES): too_slow(SENDING, *STACKS, restarts=1),
}


def cells() -> Iterator[tuple[Cell, Outcome]]:
    """Yields all cells, and what is to be seen."""
    backends: Any
    for place, rows in TABLE.items():
        for backends, row in rows.items():
            for backend in backends.split():
                for fault, outcome in row.items():
                    yield Cell(place, fault, backend), outcome
    for (place, way, backends), row in FURTHER.items():
        for backend in backends.split():
            for fault, outcome in row.items():
                yield Cell(place, fault, backend, way), outcome
