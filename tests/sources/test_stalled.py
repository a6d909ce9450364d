"""A loop that stands still while a producer writes on: memory and disk stay in their bounds, and nothing is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.storage.fetching.io_client import IO_PROCESS
from tests.servers.parent import bound_to_this_process
from tests.servers.processes import end
from tests.sources.every_source import SOURCES
from tests.sources.loading import ids_of, loader_of
from tests.sources.reading import bytes_in
from tests.sources.training import ROOT

pytestmark = pytest.mark.thorough

MB = 1 << 20

FIRST = 100
"""Records that are trained on before the loop stands still."""

COUNT = 40_000
SIZE = 10_000
"""Bytes of a record: the producer writes 400 MB."""

BUDGET = 32 * MB
SPAN = 8 * MB

AHEAD = {"kafka": 32 * MB, "redis": 16 * MB, "rabbitmq": 64 * MB, "tcp": 0}
"""What is kept beside the budget, as docs/howto/sources.md has it."""

SLACK = 64 * MB
"""For two spans at a time that are being made, and what allocators keep: together much less than what is written."""

JOURNAL = 256_000_000
"""Bytes on the disk: more than memory may take, and less than is written."""


@contextlib.contextmanager
def writing(uri: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the producer until the block ends."""
    numbers = [str(number) for number in (FIRST, COUNT, SIZE, seconds)]
    command = [sys.executable, "-m", "tests.sources.fast_writer", uri, *numbers]
    process = subprocess.Popen(bound_to_this_process(command), cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        end(process, 0.0)


def memory_of(pid: int) -> int:
    """Returns the bytes of a process: its own pages, and the files in memory that it holds open, mapped or not."""
    known = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        known[name] = int(size.split()[0]) * 1024

    files = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(path.readlink()).startswith("/memfd:"):
                found = path.stat()
                files[found.st_ino] = found.st_blocks * 512
    return known["Pss"] - known["Pss_Shmem"] + sum(files.values())


def memory() -> int:
    """Returns the bytes of this process, which trains, and of its I/O process. Spans lie in the latter."""
    return memory_of(os.getpid()) + memory_of(IO_PROCESS.get().pid)


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.stress)])
@pytest.mark.parametrize("kind", AHEAD)
@pytest.mark.timeout(400)
def test_a_loop_that_stands_still_bounds_memory_and_disk(request, kind, seconds):
    with SOURCES[kind](request, f"stalled_{kind}_{seconds}") as source:
        journal = source.opened.get("journal")
        opened = {**source.opened, "columns": ["id"], "linger": 0.5, "until": FIRST + COUNT}
        if journal:
            opened["journal_bytes"] = JOURNAL
        data = headrace.follow(source.uri, **opened)
        data._feed = dataclasses.replace(data._feed, budget=BUDGET, nbytes=SPAN)
        loader = loader_of(data, batch_size=FIRST)
        sending = threading.Thread(target=source.write, args=(range(FIRST),))
        sending.start()
        batches = iter(loader)
        found = ids_of(next(batches))
        sending.join()

        before = memory()
        most = 0
        with writing(source.uri, seconds) as writer:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                most = max(most, memory())
                assert not journal or bytes_in(journal) <= JOURNAL
                time.sleep(0.1)
            assert (writer.poll() is None) or kind != "tcp"

            for step, batch in enumerate(batches):
                found += ids_of(batch)
                if journal and step % 10 == 0:
                    loader.commit(loader.state_dict())
                    assert bytes_in(journal) <= JOURNAL
            assert writer.wait(60) == 0

        assert sorted(found) == list(range(FIRST + COUNT))
        assert loader.stats.live.full > 0
        assert most - before <= BUDGET + AHEAD[kind] + SLACK
