"""The servers of the tests end with the process that has started them, also if that is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import nginx
from tests.servers.parent import bound_to_this_process

ROOT = Path(__file__).parents[2]

STARTS = """
import sys, time
from pathlib import Path
from tests.servers import {module}
with {module}.running(Path(sys.argv[1]), {program!r}) as server:
    print(server.process.pid, flush=True)
    sys.stdin.read()
"""


def ends(pidfd: int) -> bool:
    """Waits for the end of a process."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(30_000))


def test_a_server_ends_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    program = nginx.find_nginx()
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")

    command = [sys.executable, "-c", STARTS.format(module="nginx", program=program), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as run:
        assert run.stdout is not None
        pidfd = os.pidfd_open(int(run.stdout.readline()))
        try:
            run.kill()
            assert ends(pidfd)
        finally:
            os.close(pidfd)


def test_a_program_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    command = bound_to_this_process(["touch", str(tmp_path / "began")])
    command[command.index(str(os.getpid()))] = "1"
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    assert not (tmp_path / "began").exists()
    assert subprocess.run(bound_to_this_process(["true"]), check=False, timeout=60).returncode == 0
