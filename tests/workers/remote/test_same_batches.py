"""Batches of workers on other machines are those of workers here, bit for bit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.workers.processes.messages import UNREAD
from headrace.workers.remote import proxy
from tests.servers.hosts import HostsHere, Machine, placed_on
from tests.workers.datasets import EndsLate
from tests.workers.remote.data import PlainStream, Rows, Stream, ThreadPooledRows, expected_of, flat, remote_loader

MACHINES = (Machine("one"), Machine("two"), Machine("three"))


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostsHere]:
    """Hosts on three machines; each takes seconds to start, so tests share them."""
    hosts = HostsHere(MACHINES)
    yield hosts
    hosts.close()


@pytest.mark.thorough
@pytest.mark.timeout(110)
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    workers=st.integers(1, 4),
    local=st.integers(0, 4),
    kind=st.sampled_from(["map", "map without seed", "stream", "dealt-out stream"]),
)
def test_for_every_split_of_workers_over_machines(hosts: HostsHere, workers: int, local: int, kind: str) -> None:
    words: dict[str, Any] = {"num_workers": workers}
    if kind == "map":
        dataset: Any = Rows()
        words.update(seed=3, shuffle=True)
        expected = expected_of(dataset, seed=3, shuffle=True)
    elif kind == "map without seed":
        dataset = Rows()
        expected = batches_with_torch_seed(dataset, **words)
    elif kind == "stream":
        dataset = Stream()
        expected = expected_of(dataset, **words)
    else:
        dataset = PlainStream()
        words.update(shard="auto")
        expected = expected_of(dataset, **words)

    loader = remote_loader(dataset, **words)
    with placed_on(loader, hosts, local=min(local, workers)):
        if kind == "map without seed":
            assert expected == with_torch_seed(loader)
        else:
            assert expected == [flat(batch) for batch in loader]


def batches_with_torch_seed(dataset: Any, **words: Any) -> list[Any]:
    return with_torch_seed(headrace.DataLoader(dataset, batch_size=4, **words))


def with_torch_seed(loader: Any) -> list[Any]:
    import torch

    torch.manual_seed(5)
    return [flat(batch) for batch in loader]


def test_an_epoch_is_resumed_in_its_middle_with_other_workers(hosts: HostsHere) -> None:
    expected = expected_of(Rows(), seed=1, shuffle=True)
    first = headrace.DataLoader(Rows(), batch_size=4, seed=1, shuffle=True, num_workers=2)
    iterator = iter(first)
    begun = [flat(next(iterator)) for _ in range(6)]
    state = first.state_dict()
    del iterator

    loader = remote_loader(Rows(), seed=1, shuffle=True, num_workers=3)
    loader.load_state_dict(state)
    with placed_on(loader, hosts, local=1):
        assert expected == begun + [flat(batch) for batch in loader]


@pytest.mark.thorough
def test_a_remote_batch_belongs_to_the_user(hosts: HostsHere) -> None:
    loader = remote_loader(Rows(), seed=0, num_workers=1)
    kept = []
    with placed_on(loader, hosts):
        for batch in loader:
            batch["row"] += 1
            kept.append(batch["row"])

    assert [[float(key + 1) for key in range(first, first + 4)] for first in range(0, 60, 4)] == [
        rows[:, 0].tolist() for rows in kept
    ]


@pytest.fixture
def travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a letter for each time that a dataset is sent."""
    file = tmp_path / "travels"
    send_spec = proxy._Proxy._send_spec

    def noted(self: Any) -> None:
        with file.open("a") as stream:
            stream.write("x")
        send_spec(self)

    monkeypatch.setattr(proxy._Proxy, "_send_spec", noted)
    return file


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("machines", [1, 2])
def test_the_next_epoch_has_the_same_hosts_and_the_dataset_travels_to_each_machine_once(
    machines: int, travels: Path
) -> None:
    """Without `seed=` each worker has batches of its own: no epoch ends without any of the hosts."""
    expected = batches_with_torch_seed(Rows(), num_workers=4)
    own = HostsHere(MACHINES[:machines])
    loader = remote_loader(Rows(), num_workers=4)
    with placed_on(loader, own):
        for _ in range(3):
            assert expected == with_torch_seed(loader)
            own.wait_until_started()
            assert len(own.hosts) == 4

    own.close()
    assert travels.read_text() == machines * "x"


@pytest.mark.thorough
def test_a_host_that_dies_while_others_wait_for_its_dataset_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the first host tells its port, and sends nothing before that host is dead."""
    context = get_context("fork")
    is_first, told, killed = context.Lock(), context.SimpleQueue(), context.Event()
    send_spec = proxy._Proxy._send_spec

    def once_killed(self: Any) -> None:
        if is_first.acquire(block=False):
            told.put(int(self._wire.peer.rpartition(":")[2]))
        killed.wait()
        send_spec(self)

    monkeypatch.setattr(proxy._Proxy, "_send_spec", once_killed)
    own = HostsHere()

    def kill() -> None:
        port = told.get()
        own.wait_for(2)
        next(host for host in own.hosts if host.place.port == port).kill()
        killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    loader = remote_loader(Rows(), num_workers=2)  # without seed= nobody else does the work of either worker
    with placed_on(loader, own):
        assert batches_with_torch_seed(Rows(), num_workers=2) == with_torch_seed(loader)
    killer.join()
    own.close()
    assert len(own.hosts) == 3


class Counted(list[Any]):
    """A batch of a class that counts in the loop."""

    count = 0


def counted(samples: list[Any]) -> Counted:
    return Counted(sample["text"] for sample in samples)


def test_batches_of_a_class_of_the_script_leave_that_class_alone(hosts: HostsHere) -> None:
    loader = remote_loader(Rows(), seed=0, num_workers=2, collate_fn=counted)
    Counted.count = 0
    with placed_on(loader, hosts):
        for number, batch in enumerate(loader):
            assert type(batch) is Counted
            assert Counted.count == number
            Counted.count += 1
    assert Counted.count == 15


@pytest.mark.thorough
def test_kept_workers_go_on_with_the_next_epoch(hosts: HostsHere) -> None:
    loader = remote_loader(Rows(), seed=0, shuffle=True, num_workers=2, persistent_workers=True)
    here = headrace.DataLoader(Rows(), batch_size=4, seed=0, shuffle=True)
    with placed_on(loader, hosts):
        for _ in range(3):
            assert [flat(batch) for batch in here] == [flat(batch) for batch in loader]


@pytest.mark.thorough
def test_a_changed_dataset_travels_anew(hosts: HostsHere) -> None:
    loader = remote_loader(Rows(8), seed=0, num_workers=1)
    with placed_on(loader, hosts):
        assert [0.0, 1.0, 2.0, 3.0] == next(iter(loader))["row"][:, 0].tolist()
        loader.dataset.table += 10
        assert [10.0, 11.0, 12.0, 13.0] == next(iter(loader))["row"][:, 0].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_proxies_are_started_by_every_start_method(hosts: HostsHere, method: str) -> None:
    loader = remote_loader(Rows(), seed=0, num_workers=2, multiprocessing_context=method)
    with placed_on(loader, hosts, local=1):
        assert expected_of(Rows(), seed=0) == [flat(batch) for batch in loader]


@pytest.mark.thorough
def test_a_worker_has_the_threads_that_unpickling_starts(hosts: HostsHere) -> None:
    here = headrace.DataLoader(Rows(), batch_size=4, seed=0)
    loader = remote_loader(ThreadPooledRows(), seed=0, num_workers=2)
    with placed_on(loader, hosts):
        for _ in range(2):
            assert [flat(batch) for batch in here] == [flat(batch) for batch in loader]


@pytest.mark.thorough
def test_requests_behind_the_end_of_a_stream_do_not_hold_up_the_next_epoch(hosts: HostsHere, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    stream = EndsLate(3 * UNREAD, gate)
    loader = remote_loader(stream, num_workers=1, prefetch_factor=4 * UNREAD, persistent_workers=True, batch_size=1)
    with placed_on(loader, hosts):
        for _ in range(3):
            iterator = iter(loader)
            assert [int(next(iterator)) for _ in range(3 * UNREAD)] == list(range(3 * UNREAD))
            gate.write_text("open")
            assert next(iterator, None) is None
