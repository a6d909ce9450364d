"""Nothing is lost and nothing comes twice, whatever becomes of workers on other machines and their hosts."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.workers.remote.wire import Wire
from tests import programs
from tests.servers.hosts import HostsHere, Machine, placed_on
from tests.workers.fork_server_data import ends
from tests.workers.remote.data import Faulty, PlainStream, Rows, SlowRows, Stream, expected_of, flat, remote_loader

ONE = Machine("one")
TWO = Machine("two")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostsHere]:
    """Hosts that outlive their workers."""
    hosts = HostsHere((ONE, TWO))
    yield hosts
    hosts.close()


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["exit", "kill", "segfault"])
def test_a_worker_that_dies_once_is_replaced_on_its_host(
    hosts: HostsHere, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = remote_loader(Faulty(17, fault, tmp_path / "done"), seed=0, shuffle=True)
    hosts.wait_until_idle()
    before = len(hosts.hosts)
    with placed_on(loader, hosts), caplog.at_level(logging.WARNING, "headrace"):
        found = [flat(batch) for batch in loader]

    assert expected_of(Rows(40, 100), seed=0, shuffle=True) == found
    assert loader.faults.restarts == 1
    says = {"exit": "exited with code 23", "kill": "was killed by signal 9", "segfault": "was killed by signal 11"}
    assert says[fault] in caplog.text
    assert "loading the sample with key 17" in caplog.text
    hosts.wait_until_started()
    assert len(hosts.hosts) <= max(before, 2)


@pytest.mark.thorough
def test_a_host_that_hangs_up_before_its_proxy_has_ended_is_there_for_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy that tells its host to stop goes on when it has seen how the host ends the connection."""
    send = Wire.send

    def send_and_see_the_end(self: Wire, kind: str, *rest: Any) -> None:
        send(self, kind, *rest)
        if kind == "stop":
            for thread in threading.enumerate():
                if thread is not threading.current_thread():
                    thread.join()

    monkeypatch.setattr(Wire, "send", send_and_see_the_end)
    own = HostsHere((ONE,))
    loader = remote_loader(Rows(), seed=0, num_workers=1)
    with placed_on(loader, own):
        for _ in range(2):
            assert len(list(loader)) == 15
            own.wait_until_idle()

    own.close()
    assert len(own.hosts) == 1


@pytest.mark.thorough
def test_a_worker_that_hangs_is_ended_and_its_stacks_are_shown(
    hosts: HostsHere, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = remote_loader(
        Faulty(17, "hang", tmp_path / "done"), seed=0, on_error=headrace.OnError("skip", timeout=1.0)
    )
    with placed_on(loader, hosts), caplog.at_level(logging.WARNING, "headrace"):
        found = [flat(batch) for batch in loader]

    assert expected_of(Rows(40, 100), seed=0) == found
    assert "hung for 1 s" in caplog.text
    assert "_do" in caplog.text


@pytest.mark.thorough
def test_a_sample_that_always_kills_its_worker_is_left_out_by_the_policy(hosts: HostsHere) -> None:
    loader = remote_loader(Faulty(17, "kill"), seed=0, on_error="skip")
    with placed_on(loader, hosts):
        keys = [int(text.split()[1]) for batch in loader for text in batch["text"]]

    assert [key for key in range(40) if key != 17] == keys


def test_an_exception_reaches_the_loop_with_the_text_of_the_worker(hosts: HostsHere) -> None:
    loader = remote_loader(Faulty(17, "raise"), seed=0)
    came = 0
    with placed_on(loader, hosts), pytest.raises(ValueError, match="row 17 is damaged"):
        for _ in loader:
            came += 1

    assert came == 4


@pytest.mark.quick(kind="map", local=1)
@pytest.mark.filterwarnings("ignore:.* cannot say where it was:UserWarning")
@pytest.mark.parametrize(
    ("kind", "local"),
    [
        ("map", 0),
        ("map", 1),
        ("map without seed", 0),
        pytest.param("map without seed", 1, marks=pytest.mark.stress),
        pytest.param("stream", 0, marks=pytest.mark.stress),
        ("stream", 1),
        ("dealt-out stream", 0),
        pytest.param("dealt-out stream", 1, marks=pytest.mark.stress),
    ],
)
def test_hosts_that_are_killed_again_and_again_change_nothing(
    local: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    datasets: dict[str, tuple[Any, dict[str, Any]]] = {
        "map": (SlowRows(120, 0.002), {"seed": 0, "shuffle": True}),
        "map without seed": (NoDraws(120, 0.02), {}),
        "stream": (Stream(200), {}),
        "dealt-out stream": (PlainStream(200), {"shard": "auto"}),
    }
    dataset, words = datasets[kind]
    expected = expected_of(dataset, num_workers=2, **words)
    loader = remote_loader(dataset, **words)
    own = HostsHere((ONE, TWO))
    found = []
    with placed_on(loader, own, local), caplog.at_level(logging.WARNING, "headrace"):
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number in (3, 12, 20):
                kill_one(own)

    own.close()
    assert expected == found
    # With seed= the worker here may make all batches before a host has come.
    assert "was lost" in caplog.text or (kind == "map" and local)


class NoDraws(SlowRows):
    """Samples without random numbers, which a replaced worker would draw anew without a seed."""

    def __getitem__(self, key: int) -> dict[str, Any]:
        sample = super().__getitem__(key)
        del sample["drawn"]
        return sample


def kill_one(hosts: HostsHere) -> int:
    """Kills a host that is still there; returns how many were killed."""
    for host in list(hosts.hosts):
        if host.is_alive():
            host.kill()
            return 1
    return 0


@pytest.mark.thorough
def test_the_work_of_a_lost_machine_goes_to_those_that_are_left(caplog: pytest.LogCaptureFixture) -> None:
    own = HostsHere((ONE, TWO), most=1)
    loader = remote_loader(SlowRows(160, 0.01), seed=0, shuffle=True)
    found = []
    with placed_on(loader, own, local=1), caplog.at_level(logging.WARNING, "headrace"):
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number == 10:
                own.wait_for(1)
                own.hosts[0].kill()

        while "others do its work" not in caplog.text:  # the loss may have been seen after the last batch
            assert len(list(loader)) == 40

    own.close()
    assert expected_of(SlowRows(160, 0), seed=0, shuffle=True) == found


@pytest.mark.thorough
def test_it_is_one_clear_error_where_no_machine_is_left() -> None:
    own = HostsHere((ONE,), most=1)
    loader = remote_loader(SlowRows(400, 0.005), seed=0, num_workers=1)
    came = []
    with placed_on(loader, own), pytest.raises(headrace.errors.ClusterError, match="no further machine in this test"):
        for batch in loader:
            came.append(batch["text"][0])
            if len(came) == 3:
                own.hosts[0].kill()

    own.close()
    assert [f"row {4 * number}" for number in range(len(came))] == came


@pytest.mark.thorough
def test_it_is_one_clear_error_where_no_machine_comes() -> None:
    own = HostsHere((ONE,), patience=0.5)
    own.start = lambda placed: threading.Event().wait(600)  # type: ignore[assignment,method-assign,return-value]  # for ever
    loader = remote_loader(Rows(), seed=0)
    with placed_on(loader, own), pytest.raises(headrace.errors.ClusterError, match=r"no machine for \d s"):
        next(iter(loader))


@pytest.mark.thorough
def test_a_stopped_host_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.workers.remote.wire.SILENCE", 3.0)
    monkeypatch.setattr("headrace.workers.remote.proxy.SILENCE", 3.0)
    own = HostsHere((ONE, TWO))
    loader = remote_loader(SlowRows(120, 0.005), seed=0, num_workers=1)
    found = []
    with placed_on(loader, own):
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number == 3:
                own.hosts[0].stop()

    own.close()
    assert expected_of(SlowRows(120, 0), seed=0) == found
    assert loader.faults.restarts == 1


def test_a_dataset_that_cannot_be_unpickled_there_is_an_error_that_says_so(hosts: HostsHere) -> None:
    loader = remote_loader(Unpicklable(40), seed=0)
    with placed_on(loader, hosts), pytest.raises(headrace.errors.ClusterError, match="only here"):
        next(iter(loader))


class Unpicklable(Rows):
    """Opens something that is there in one process only."""

    pid = os.getpid()

    def __reduce__(self) -> Any:
        return _only_here, (self.pid, self.length)


def _only_here(pid: int, length: int) -> Rows:
    if os.getpid() != pid:
        raise RuntimeError("only here")
    return Rows(length)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("local", [0, 1])
def test_a_host_that_is_killed_every_five_seconds_changes_nothing(local: int) -> None:
    own = HostsHere((ONE, TWO))
    loader = remote_loader(SlowRows(4_000, 0.01), seed=0, shuffle=True, num_workers=2 + local)
    over = threading.Event()
    killed = []

    def kill_again_and_again() -> None:
        while not over.wait(5.0):
            killed.append(kill_one(own))

    killer = threading.Thread(target=kill_again_and_again)
    with placed_on(loader, own, local):
        killer.start()
        found = [flat(batch) for batch in loader]
        over.set()
        killer.join()

    own.close()
    assert expected_of(SlowRows(4_000, 0), seed=0, shuffle=True) == found
    assert sum(killed) >= 3


STARTS_A_HOST = """
import os, signal, sys
from headrace.workers.remote.actors import start_host
process, control, place = start_host(b"key", "127.0.0.1", "one", os.getcwd(), [])
os.kill(process.pid, signal.SIGSTOP)
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a host ends only once it listens again")
def test_a_host_that_hangs_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTS_A_HOST)
    with programs.Program([script], cwd=tmp_path) as parent:
        host = int(parent.read_line())
        parent.kill()
        assert ends(host)
