"""The runner of crashes sees what it is there to see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import Hang
from tests.workers.crashes.cells import ARRIVE
from tests.workers.crashes.data import SayAndHang
from tests.workers.crashes.program import Cell
from tests.workers.crashes.running import Ending, Running, Seen, session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc")


def leaves_a_child(say: int, folder: Path) -> Seen:
    if os.fork() == 0:
        Hang()()
    return Seen()


def leaves_a_program(say: int, folder: Path) -> Seen:
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], close_fds=True)
    os._exit(5)


def hangs(say: int, folder: Path) -> Seen:
    Hang()()
    raise AssertionError("it goes on")


def hangs_until_ctrl_c(say: int, folder: Path) -> Seen:
    try:
        SayAndHang(say)()
    except KeyboardInterrupt:
        return Seen(error="KeyboardInterrupt")
    raise AssertionError("it goes on")


def test_a_hang_is_ended_and_told(tmp_path: Path) -> None:
    ending = Running(hangs, tmp_path, limit=0.3).ending()
    assert (ending.seen, ending.exitcode) == (None, None)
    assert "it hangs" in ARRIVE.differences(Cell("__getitem__", "hang", "fork"), ending)


def test_processes_that_a_crash_leaves_behind_are_told_and_ended(tmp_path: Path) -> None:
    for number, (leave, exitcode) in enumerate([(leaves_a_child, 0), (leaves_a_program, 5)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        running = Running(leave, folder, patience=0.3)
        ending = running.ending()
        assert ending.exitcode == exitcode
        (left,) = ending.left
        assert f"left behind: {left}" in ARRIVE.differences(Cell("__getitem__", "exit", "fork"), ending)
        assert session(running.pid) == []


def test_a_program_that_says_that_it_hangs_gets_ctrl_c(tmp_path: Path) -> None:
    ending = Running(hangs_until_ctrl_c, tmp_path).ending()
    assert ending.seen == Seen(error="KeyboardInterrupt")
    assert (ending.exitcode, ending.left) == (0, [])


def test_the_exit_code_tells_the_signal(tmp_path: Path) -> None:
    ending = Running(lambda say, folder: os.kill(os.getpid(), signal.SIGKILL), tmp_path).ending()  # type: ignore[arg-type,return-value]
    assert (ending.seen, ending.exitcode) == (None, -signal.SIGKILL)


def test_a_difference_is_named() -> None:
    seen = Seen(batches=[[0, 1], [2, 3], [4, 5]], error="ValueError", text="on purpose", restarts=1)
    ending = Ending(seen, 0, [], 0.1, "")
    assert ARRIVE.differences(Cell("__getitem__", "hang", "fork"), ending) == [
        "batches [[0, 1], [2, 3], [4, 5]] instead of [[0, 1], [2, 3], [4, 5], [6, 7]]",
        "ValueError instead of None: on purpose",
        "1 workers replaced instead of 0",
    ]
