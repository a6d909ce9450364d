"""What a process that starts now gets from this one, besides its arguments.

torch's workers start anew for each epoch: they see the working directory, the environment and so on as they are then.
"""

from __future__ import annotations

import contextlib
import os
import sys
from multiprocessing import spawn
from pathlib import Path
from typing import Any

OF_THREAD = ("Umask", "Uid", "Gid", "Groups", "SigIgn", "Cpus_allowed")
"""Lines of Linux's `/proc/thread-self/status`."""

STREAMS = (0, 1, 2)


def inherited_state(method: str) -> dict[str, Any]:
    """Returns what a process would inherit that is started by spawn or forkserver; equal as long as it is the same.

    A fork server of multiprocessing has been started before, so only that counts which multiprocessing sends along.
    """
    found: dict[str, Any] = spawn.get_preparation_data("")
    found["sys_argv"] = list(sys.argv)
    if method != "spawn":
        return found

    found["environment"] = dict(os.environ)
    found["warnings"] = list(sys.warnoptions)
    found["executable"] = spawn.get_executable()
    found["session"] = os.getpgrp(), os.getsid(0)
    found["nice"] = os.nice(0)
    for descriptor in STREAMS:
        with contextlib.suppress(OSError):  # it is closed
            status = os.fstat(descriptor)
            found[f"stream {descriptor}"] = status.st_dev, status.st_ino

    with contextlib.suppress(OSError):  # other systems than Linux
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        found["thread"] = [line for line in lines if line.partition(":")[0] in OF_THREAD]
        found["limits"] = Path("/proc/self/limits").read_text()
    return found
