"""Reads stored data in processes that may take little memory: `python -m tests.data.formats.hungry`, a job a line.

A job is JSON: `path`, and `room`, the bytes of memory that reading may take beyond what the process has. The answer is
JSON too: `error` (its class, None if all went well), `text` (what it says, or how many samples there are), `grown`
(bytes that were taken at the most), `status` (of the process: 0 unless it was killed or hung). Each job runs in a fork
of its own.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import cv2  # noqa: F401 - imported before memory is short, as the others
import datasets  # noqa: F401
import h5py  # noqa: F401
import lmdb  # noqa: F401
import PIL.Image  # noqa: F401
import simplejpeg  # noqa: F401
import tensordict  # noqa: F401

import headrace
from headrace.core.batch_memory import OwnMemory
from headrace.data.formats.registry import FORMATS, format_named

PATIENCE = 30.0


def status_bytes(name: str) -> int:
    """Returns a size that the system knows of this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) << 10


def read(path: str) -> int:
    """Reads samples, a batch and the beginning of a stream. Returns how many samples there are."""
    dataset = headrace.open(path)
    count = len(dataset)
    dataset[0]
    dataset.fetch_batch([0, count // 2, count - 1], OwnMemory())
    next(iter(dataset.stream()))
    return count


def child(job: dict[str, Any], writing: int) -> None:
    """Runs a job and ends the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries have much to say of bad data
    before = status_bytes("VmRSS")
    limit = status_bytes("VmData") + job["room"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    error, text = None, ""
    try:
        text = str(read(job["path"]))
    except BaseException as raised:  # noqa: BLE001 - which ones there are is the question
        error, text = type(raised).__name__, str(raised)[:4000]
    grown = max(status_bytes("VmHWM") - before, 0)
    os.write(writing, json.dumps({"error": error, "text": text, "grown": grown}).encode())
    os._exit(0)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(job, writing)
    os.close(writing)
    answer, until = b"", time.monotonic() + PATIENCE
    while select.select([reading], [], [], max(until - time.monotonic(), 0))[0] and (part := os.read(reading, 1 << 16)):
        answer += part
    if not answer:
        os.kill(pid, signal.SIGKILL)
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    nothing = {"error": "nothing", "text": "the process hung, or died", "grown": 0}
    return {**(json.loads(answer) if answer else nothing), "status": status}


def main() -> None:
    """Runs one job after the other."""
    warnings.simplefilter("ignore")
    for name in FORMATS:
        format_named(name)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
