"""Supervision of a pool: notices who hangs, words who died, and decides what becomes of their work."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.core.errors import ClusterError, SampleTimeoutError, explain
from headrace.core.process.activity import IDLE
from headrace.core.process.memory import oom_kills
from headrace.workers.crash_report import CrashReport, doing
from headrace.workers.heartbeat import Watch
from headrace.workers.processes.messages import Result
from headrace.workers.processes.pool import WorkerPool
from headrace.workers.restart_policy import RestartDecision, RestartPolicy

LOGGER = logging.getLogger("headrace")

SAID = 20
"""Deaths of a pool that are logged one by one."""


class Supervisor:
    """One pool's. `sample_timeout`: seconds that one sample may take; None: for ever."""

    def __init__(self, pool: WorkerPool, dataset: object, sample_timeout: float | None) -> None:
        self.watch = Watch(lambda worker: pool.workers[worker].crash_file.activity)
        self._pool = pool
        self._dataset = dataset
        self._sample_timeout = sample_timeout
        self._restart_policy = RestartPolicy()
        self._oom_kills = oom_kills()
        self._ended: dict[int, tuple[float, str]] = {}
        self._said = 0

    def begin_epoch(self) -> None:
        """Forgets tasks, whose numbers begin anew."""
        self._restart_policy.begin_epoch()

    def made_progress(self, worker_id: int) -> None:
        """Notes that a worker has sent a result."""
        self._restart_policy.made_progress(worker_id)

    @property
    def look_again(self) -> float | None:
        """Seconds after which to look for workers that hang; None: never."""
        if self._sample_timeout is None:
            return None
        return max(min(self._sample_timeout / 4, 1.0), 0.01)

    def overdue(self, busy: Sequence[int]) -> list[tuple[int, float]]:
        """Returns which of the workers that have work hang, by `sample_timeout`, and after how many seconds."""
        if self._sample_timeout is None:
            return []
        hanging = ((worker_id, self.watch.hangs(worker_id, self._sample_timeout)) for worker_id in busy)
        return [(worker_id, hangs[1]) for worker_id, hangs in hanging if hangs is not None]

    def idle_for(self, busy: Sequence[int], seconds: float) -> list[int]:
        """Returns which of the workers that have work were at one thing for at least half of so long, up to now."""
        return [worker_id for worker_id in busy if self.watch.waited(worker_id) >= 0.5 * seconds]

    def end(self, worker_id: int, after: float) -> Iterator[tuple[int, Result]]:
        """Ends a worker that hangs, after its stacks were written down; yields what it had sent.

        Does nothing if it has gone on meanwhile.
        """
        worker = self._pool.workers[worker_id]
        seen = self.watch.sight(worker_id)
        stacks = worker.crash_file.ask(worker.process)
        if self.watch.sight(worker_id) == seen:
            self._ended[worker_id] = after, stacks
            yield from self._pool.end(worker_id)

    def stacks(self, busy: Sequence[int]) -> str:
        """Returns the stacks of workers that go on."""
        parts = []
        for worker_id in busy:
            worker = self._pool.workers[worker_id]
            if not worker.reaped and (text := worker.crash_file.ask(worker.process)):
                parts.append(f"worker {worker_id} (pid {worker.process.pid}):\n{text}")

        return "\n".join(parts)

    def examine(
        self, worker_id: int, keys: dict[int, Sequence[Any]] | None, lost: str = ""
    ) -> tuple[CrashReport, RestartDecision]:
        """Returns what is known of a worker that was reaped, and what becomes of its work.

        keys: those of its tasks; None for an iterable dataset.
        lost: how the connection to its machine was lost; empty: it was not.
        """
        worker = self._pool.workers[worker_id]
        after, stacks = self._ended.pop(worker_id, (None, ""))
        seen = self.watch.sight(worker_id, hung=after is not None)
        if lost:
            # No sample is to blame for a machine that is gone.
            seen = seen._replace(stage=IDLE)

        words, key = doing(seen, None if keys is None else keys.get(seen.task, ()), self._dataset)
        before = self._oom_kills
        self._oom_kills = oom_kills()
        report = CrashReport(
            worker.remote_pid or worker.process.pid, worker.process.exitcode, seen, words, key,
            self._oom_kills - before, stacks or worker.crash_file.stacks(), after, worker.host, lost,
        )  # fmt: skip
        return report, self._restart_policy.judge(seen)

    def say(self, report: CrashReport, done: str) -> None:
        """Logs a death."""
        self._said += 1
        if self._said > SAID:
            return

        if self._said == SAID:
            more = " Further ones are not logged."
        else:
            more = ""

        if report.stacks:
            stacks = f"\n{report.stacks}"
        else:
            stacks = ""

        LOGGER.warning("headrace: %s; %s.%s%s", report.sentence, done, more, stacks)


def error_for(report: CrashReport, *, policy: bool) -> Exception:
    """Returns what is raised where nobody can go on behind a worker's death. `policy`: whether `on_error` was asked."""
    if report.lost:
        return ClusterError.about(
            "a worker on another machine is lost again and again",
            place=report.host,
            found=report.lost,
            expected="a machine that stays long enough to make a batch",
            fix="look at the logs of Ray on that machine; it may lack memory",
        )

    if report.after is None:
        return report.notice()

    message = explain(
        "a DataLoader worker hangs",
        place=report.doing,
        found=f"no progress for {report.after:g} s, again after the worker was replaced",
        expected="a sample within the timeout of on_error (or a batch within timeout)",
        fix="fix what it waits for, or raise the limit; no single sample of it can be left out"
        if policy
        else "fix what it waits for, raise the limit, or have such samples skipped or replaced with on_error=",
    )
    error = SampleTimeoutError(message)
    if report.stacks:
        error.add_note(f"headrace: the worker's Python stacks were:\n{report.stacks}")
    return error
