"""The words about dead workers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.core.process import memory
from headrace.core.process.activity import COLLATE, IDLE, JUDGE, LOAD, SEND, START, TOGETHER, UNBORN
from headrace.workers.crash_report import CrashReport, doing
from headrace.workers.processes.crash_file import OURS, of_the_user
from headrace.workers.restart_policy import Sighting


def seen(stage: int, place: int = 1, spare: int = 0) -> Sighting:
    return Sighting(1, 7, stage, place, spare, False)


class Listed:
    samples = [("a.jpg", 0), ("b.jpg", 0), ("c.jpg", 1)]


@pytest.mark.parametrize(
    ("sighting", "keys", "words", "key"),
    [
        (seen(UNBORN), [0, 2], "starting", None),
        (seen(START), None, "starting", None),
        (seen(LOAD), [0, 2], "loading the sample with key 2 (c.jpg)", 2),
        (seen(LOAD, 0, spare=2), [0, 2], "loading the sample with key 1 (b.jpg)", 1),
        (seen(LOAD, TOGETHER), [0, 2], "loading the batch with keys 0, 2", None),
        (seen(LOAD, 12), None, "loading sample number 12 of its stream", None),
        (seen(JUDGE, 1), [0, 2], "asking on_error about the sample with key 2", None),
        (seen(COLLATE, TOGETHER), [0, 2], "collating the batch with keys 0, 2", None),
        (seen(SEND, TOGETHER), [0, 2], "sending the batch with keys 0, 2", None),
        (seen(SEND, TOGETHER), None, "sending a batch of its stream", None),
        (seen(IDLE), [0, 2], "waiting for work", None),
        (seen(SEND), [], "waiting for work", None),
    ],
)
def test_the_report_tells_what_a_worker_was_doing(sighting: Sighting, keys: Any, words: str, key: Any) -> None:
    assert doing(sighting, keys, Listed()) == (words, key)


@pytest.mark.parametrize(
    ("code", "oom", "after", "words"),
    [
        (-9, 0, None, "was killed by signal 9 (SIGKILL, Killed)"),
        (-9, 2, None, "meanwhile the kernel killed 2 of this cgroup for want of memory"),
        (3, 0, None, "exited with code 3"),
        (-9, 0, 2.5, "hung for 2.5 s and was ended"),
        (-int(signal.SIGBUS), 0, None, f"was killed by signal {int(signal.SIGBUS)} (SIGBUS, "),
        (-40, 0, None, "was killed by signal 40 while"),
    ],
)
def test_the_report_tells_how_a_worker_ended(code: int, oom: int, after: float | None, words: str) -> None:
    report = CrashReport(4711, code, seen(LOAD), "loading", 2, oom, "", after)
    assert words in report.sentence
    assert report.sentence.startswith("worker 1 (pid 4711) ")
    notice = report.notice()
    assert str(notice) == "DataLoader worker (pid(s) 4711) exited unexpectedly"
    assert ("raise your shared memory limit" in str(notice.__cause__)) == (code == -int(signal.SIGBUS))


def test_stacks_end_where_the_loader_called() -> None:
    text = f"""Current thread 0x1 (most recent call first):
  File "/me/data.py", line 8 in read
  File "{OURS}/batches/fetch_map.py", line 180 in _one_by_one
  File "{OURS}/workers/processes/worker_main.py", line 61 in main
  File "/usr/lib/python3.11/multiprocessing/process.py", line 108 in run

Thread 0x2 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait
"""
    lines = of_the_user(text).splitlines()
    assert lines == [
        "Current thread 0x1 (most recent call first):",
        '  File "/me/data.py", line 8 in read',
        f'  File "{OURS}/batches/fetch_map.py", line 180 in _one_by_one',
        "",
        "Thread 0x2 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 5 in wait',
    ]


@pytest.mark.parametrize(
    "text", ["low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"]
)
def test_kills_for_want_of_memory_are_counted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = tmp_path / "memory.events"
    counting.write_text(text)
    monkeypatch.setattr(memory, "_counting_files", lambda: iter([tmp_path / "none", counting]))
    assert memory.oom_kills() == 2
    counting.unlink()
    assert memory.oom_kills() == 0
