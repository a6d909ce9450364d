"""The connection to a Ray cluster: what it finds by itself, and what it says where there is none."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from headrace.cluster import connection
from headrace.cluster.connection import connect
from headrace.core.errors import ClusterError, MissingExtraError
from tests import programs
from tests.servers.processes import free_ports
from tests.servers.ray import RayCluster


def test_an_address_where_nobody_listens_is_named() -> None:
    pytest.importorskip("ray")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for given in (address, f"ray://{address}"):
        with pytest.raises(ClusterError, match="cannot connect to a Ray cluster") as caught:
            connect(given)
        assert f"place:    {given}\n" in str(caught.value)


@pytest.mark.parametrize("address", ["somewhere", "host:", ":80", "host:port"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match="no port in it"):
        connect(address)


@pytest.mark.thorough
def test_the_environment_names_the_cluster_and_a_second_call_does_nothing(on_ray: RayCluster) -> None:
    import ray

    before = signal.getsignal(signal.SIGINT)
    connect()
    assert ray.get_runtime_context().gcs_address == on_ray.address
    connect("127.0.0.1:1")
    assert ray.get_runtime_context().gcs_address == on_ray.address
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.thorough
def test_the_users_handler_of_sigterm_stays(on_ray: RayCluster) -> None:
    def mine(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        connect(on_ray.address)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_note_of_a_killed_cluster_does_not_keep_anybody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert connection._cluster_of_this_machine() is None


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[ray\]'"):
        connect()


@pytest.mark.thorough
def test_headrace_does_not_import_ray() -> None:
    program = "import sys, headrace, headrace.cli.app, headrace.data.convert.pack; print('ray' in sys.modules)"
    assert programs.run(["-c", program], fresh=True).stdout == "False\n"
