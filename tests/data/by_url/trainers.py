"""Trains, as a program that may be killed: reads jobs from stdin, and forks a process for each.

Each line is a `Job` as JSON. What is said on stdout, a line each, a list of JSON:

    ["began", name, pid]                    a job has a process
    ["opened", name]                        its loader stands
    ["batch", name, number, crc]            a batch was delivered; its state is saved behind that
    ["ended", name, status]                 its process has ended, with a negative status by a signal

A job goes on from the state that it saved last. Its process leads a session of its own, to which all belong that it
starts.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import os
import pickle
import select
import signal
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace
from headrace.data.formats.registry import FORMATS, format_named
from headrace.storage.fetching import fetcher
from tests.servers.parent import end_with

OUT = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """What to train on, and where the state and the errors go."""

    name: str
    source: str
    options: dict[str, Any]
    cache: dict[str, Any]
    """`cache_dir=` and `cache_limit=` of `headrace.open`; none for data on this machine."""
    format: str
    workers: int
    epochs: int
    folder: str
    """Its own: for the state, the errors and the files that it makes in TMPDIR."""
    budget: int
    """Bytes that are read ahead without workers."""


def crc_of(batch: Any) -> int:
    """Returns a checksum of all values of a batch, with their types and shapes."""
    crc = 0
    if isinstance(batch, dict):
        for name in sorted(batch):
            crc = zlib.crc32(f"{name} {crc_of(batch[name])}".encode(), crc)
        return crc
    if isinstance(batch, (list, tuple)):
        for part in batch:
            crc = zlib.crc32(str(crc_of(part)).encode(), crc)
        return crc
    if isinstance(batch, torch.Tensor):
        batch = batch.numpy()
    if isinstance(batch, np.ndarray):
        return zlib.crc32(batch.tobytes(), zlib.crc32(f"{batch.dtype} {batch.shape}".encode()))
    return zlib.crc32(repr(batch).encode())


def say(*words: Any) -> None:
    """Writes a line at once: lines of several processes do not mix."""
    os.write(OUT, (json.dumps(words) + "\n").encode())


def train(job: Job) -> None:
    """Delivers the batches that are left, and saves the state behind each."""
    state_file = Path(job.folder, "state")
    dataset = headrace.open(job.source, format=job.format, options=job.options or None, **job.cache)
    words = {}
    if job.workers:
        words["prefetch_factor"] = 2
    loader = headrace.DataLoader(dataset, batch_size=8, shuffle=True, seed=5, num_workers=job.workers, **words)
    number = 0
    if state_file.exists():
        number, state = pickle.loads(state_file.read_bytes())
        loader.load_state_dict(state)

    say("opened", job.name)
    last = job.epochs * len(loader)
    while number < last:
        for batch in loader:
            say("batch", job.name, number, crc_of(batch))
            number += 1
            unfinished = state_file.with_suffix(".new")
            unfinished.write_bytes(pickle.dumps((number, loader.state_dict())))
            unfinished.replace(state_file)
            if number == last:
                break


def begin(job: Job) -> int:
    """Forks the process of a job. Returns its number."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid

    # Only this thread is here: the parent has no others.
    os.setsid()
    end_with(parent)
    errors = os.open(Path(job.folder, "errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(errors, 2)
    os.close(errors)
    temporary = Path(job.folder, "tmp")
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    fetcher.BUDGET = job.budget
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    train(job)
    gc.collect()
    sys.exit(0)


def main() -> None:
    """Begins jobs and tells of their ends, until stdin ends; what runs then is killed."""
    for name in FORMATS:
        format_named(name)
    # So that no child imports them.
    assert callable(headrace.open)
    assert callable(headrace.DataLoader)
    # Whoever waits for lines is woken by the end of a process, too.
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, str] = {}
    unread = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            say("ended", running.pop(pid), os.waitstatus_to_exitcode(status))

        if 0 not in ready:
            continue
        part = os.read(0, 1 << 16)
        if not part:
            return
        *lines, unread = (unread + part).split(b"\n")
        for line in lines:
            job = Job(**json.loads(line))
            pid = begin(job)
            running[pid] = job.name
            say("began", job.name, pid)


if __name__ == "__main__":
    main()
