"""The words about workers that died or hung: how they ended, what they were doing, on which sample, their stacks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.batches.notes import describe
from headrace.core.process.activity import COLLATE, JUDGE, LOAD, SEND, START, TOGETHER, UNBORN
from headrace.faults.bad_sample import path_of
from headrace.workers.restart_policy import Sighting


class CrashReport(NamedTuple):
    """One worker that died, or was ended because it hung."""

    pid: int
    exitcode: int | None
    seen: Sighting
    doing: str
    """What it was doing, in words."""
    key: Any
    """The key of the sample that it was loading; None if it was not loading a single one."""
    oom_kills: int
    """Processes of the cgroup that the kernel killed for want of memory since the last death."""
    stacks: str
    after: float | None
    """Seconds after which it was ended because it hung; None: it died."""
    host: str = ""
    """The other machine on which it worked; empty: it was this one."""
    lost: str = ""
    """How the connection to that machine was lost; empty: it was not."""

    @property
    def how(self) -> str:
        """How it ended, as the end of a sentence about it."""
        if self.lost:
            return f"was lost ({self.lost})"
        if self.after is not None:
            return f"hung for {self.after:g} s and was ended"

        if self.exitcode is not None and self.exitcode < 0:
            why = ""
            if self.oom_kills:
                why = f"; meanwhile the kernel killed {self.oom_kills} of this cgroup for want of memory"
            return f"was killed by signal {_name(-self.exitcode)}{why}"

        if self.exitcode is None:
            return "ended (how is unknown: the program ignores SIGCHLD, or waits for any child itself)"
        return f"exited with code {self.exitcode}"

    @property
    def sentence(self) -> str:
        """All in one line."""
        where = ""
        if self.host:
            where = f" on {self.host}"
        return f"worker {self.seen.worker} (pid {self.pid}{where}) {self.how} while it was {self.doing}"

    def notice(self) -> RuntimeError:
        """Returns torch's error for a dead worker; its cause says how it ended."""
        error = RuntimeError(f"DataLoader worker (pid(s) {self.pid}) exited unexpectedly")
        lines = [_as_torch_says(self.pid, self.exitcode), f"headrace: {self.sentence}."]
        if self.stacks:
            lines.append(f"Its Python stacks were:\n{self.stacks}")

        error.__cause__ = RuntimeError("\n".join(lines))
        return error


def doing(seen: Sighting, keys: Sequence[Any] | None, dataset: object) -> tuple[str, Any]:
    """Returns what a worker was doing, in words, and the key of the sample that it was loading.

    keys: those of the batch that it was making; None for an iterable dataset.
    """
    if seen.stage in (UNBORN, START):
        return "starting", None
    if keys is not None and not len(keys):
        return "waiting for work", None  # what the activity names was answered

    if seen.stage == LOAD and keys is None:
        if seen.place == TOGETHER:
            where = "samples"
        else:
            where = f"sample number {seen.place}"
        return f"loading {where} of its stream", None

    if keys is not None:
        batch = describe(list(keys))
    else:
        batch = "a batch of its stream"

    if seen.stage == LOAD and keys is not None and 0 <= seen.place < len(keys):
        if seen.spare:
            key = seen.spare - 1
        else:
            key = keys[seen.place]

        path = path_of(dataset, key)
        return f"loading the sample with key {key!r}" + (f" ({path})" if path else ""), key

    if seen.stage == JUDGE and keys is not None and 0 <= seen.place < len(keys):
        return f"asking on_error about the sample with key {keys[seen.place]!r}", None

    verb = {LOAD: "loading", COLLATE: "collating", SEND: "sending"}.get(seen.stage)
    return f"{verb} {batch}" if verb else "waiting for work", None


def _name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name}, {signal.strsignal(number)})"
    except ValueError:
        return str(number)


def _as_torch_says(pid: int, code: int | None) -> str:
    if code is not None and code < 0:
        text = f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-code)}. "
        if -code == signal.SIGBUS:
            text += (
                "It is possible that dataloader's workers are out of shared memory. "
                "Please try to raise your shared memory limit."
            )

        return text

    return (
        f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {code}. "
        "Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
    )
