"""Makes all cores of the machine busy for a while, and runs scripts beside that."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.core.process.machine import cores

SPIN = "import time\nends = time.monotonic() + 60\nprint('spins', flush=True)\nwhile time.monotonic() < ends: pass"
"""What a busy process runs: it ends by itself after a minute, should nobody end it."""


@contextlib.contextmanager
def busy_cores(each: int = 2) -> Iterator[None]:
    """Has `each` processes keep every core busy, inside a `with`. They are ended by their ids."""
    spinning = []
    try:
        for _ in range(each * cores()):
            spinning.append(subprocess.Popen([sys.executable, "-S", "-c", SPIN], stdout=subprocess.PIPE))
        for process in spinning:
            assert process.stdout is not None
            assert process.stdout.readline() == b"spins\n"
        yield
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


def output_of(script: Path, *arguments: str) -> str:
    """Runs a script in a process beside the busy ones, and returns what it prints."""
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout
