"""What child processes of these tests do; importable, so that spawned ones find it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from headrace.testing import Attempts


def run(job: Callable[..., Any], *args: Any, method: str = "fork") -> int | None:
    """Runs a job in a child process; returns its exit code, negative for a signal."""
    process = multiprocessing.get_context(method).Process(target=_quietly, args=(job, *args))
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    return code


def _quietly(job: Callable[..., Any], *args: Any) -> None:
    faulthandler.disable()  # pytest's would report a crash that is meant to be
    job(*args)


def count(attempts: Attempts, key: Any, times: int) -> None:
    """Counts, and dies without any cleaning up."""
    for _ in range(times):
        attempts.count(key)
    os.kill(os.getpid(), 9)


def exits_0_after(job: Callable[[], Any], error: type[BaseException]) -> None:
    """Exits with 0 if the job raises the error, and with 2 if not."""
    try:
        job()
    except error:
        os._exit(0)
    os._exit(2)
