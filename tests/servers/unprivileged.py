"""Servers that refuse to run as root: a user without rights for them, and folders which that user may enter."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.processes import end

USER = "nobody"


def as_user(command: list[str]) -> list[str]:
    """Returns a command that does the same without root's rights; as it is where there are none."""
    if os.geteuid() != 0:
        return command

    user = pwd.getpwnam(USER)
    # The kernel forgets that the program shall end with its parent when the user changes: `keep` says it again.
    dropped = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return [*dropped, "--pdeathsig", "keep", *command]


@contextlib.contextmanager
def folder_of_user(name: str) -> Iterator[Path]:
    """Gives a folder that belongs to the user; pytest's own may be entered by nobody else."""
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-test-{name}-"))
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            os.chown(folder, user.pw_uid, user.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder)


def end_by(process: subprocess.Popen[bytes], number: signal.Signals, grace: float = 20.0) -> None:
    """Ends a server by the signal that it takes for "now", and kills it if it stays."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        end(process, 0.0)
