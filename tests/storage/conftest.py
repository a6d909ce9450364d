"""What holds for all tests of storage."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_credentials_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests find no keys, endpoints and profiles but their own."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # Where nothing answers: a machine in a cloud has credentials of its own.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
