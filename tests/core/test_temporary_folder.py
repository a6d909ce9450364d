"""A folder for the time of a block: it goes with the block, and where SIGTERM ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.core.files.temporary_folder import temporary_folder

ENDED_AS_SOON_AS_IT_IS_THERE = """
import os, signal
from headrace.core.files.temporary_folder import temporary_folder

make = os.mkdir

def make_and_end(*given, **named):
    make(*given, **named)
    os.kill(os.getpid(), signal.SIGTERM)

os.mkdir = make_and_end
with temporary_folder("mine-"):
    print("it goes on")
"""


def test_it_goes_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    with temporary_folder("mine-") as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith("mine-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("removed", [False, True], ids=["kept", "removed by the block"])
def test_an_error_in_the_block_is_passed_on(removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), temporary_folder("mine-") as folder:
        if removed:
            folder.rmdir()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_sigterm_removes_it_from_its_first_moment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDED_AS_SOON_AS_IT_IS_THERE]
    ended = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == ""
    assert ended.returncode == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
