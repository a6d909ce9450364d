"""Loaders whose workers Ray runs: the same batches, whatever becomes of actors, nodes and the head."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.workers.remote.placement import RayPlacement
from tests import programs
from tests.servers import ray as ray_servers
from tests.servers.processes import free_ports
from tests.servers.ray import RayCluster
from tests.workers.remote.data import PlainStream, SlowRows, expected_of, flat, remote_loader


@contextlib.contextmanager
def variables_of(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in cluster.variables.items():
            patch.setenv(name, value)
        yield


log = logging.getLogger(__name__)


@pytest.mark.thorough
def test_batches_are_those_of_the_same_loader_without_ray(on_ray: RayCluster) -> None:
    loader = remote_loader(SlowRows(80), seed=0, shuffle=True)
    here = headrace.DataLoader(SlowRows(80, 0), batch_size=4, seed=0, shuffle=True)
    epochs = 0
    while epochs < 2 or set(loader.recorder.hosts) != {0, 1}:  # one worker may make an epoch before the other comes
        assert [flat(batch) for batch in here] == [flat(batch) for batch in loader]
        epochs += 1


@pytest.mark.thorough
def test_a_stream_is_dealt_out_over_local_and_remote_workers(on_ray: RayCluster) -> None:
    loader = remote_loader(PlainStream(), shard="auto", backend=headrace.Ray(local=1), num_workers=3)
    expected = expected_of(PlainStream(), shard="auto", num_workers=2)
    assert sorted(map(repr, all_rows(expected))) == sorted(map(repr, all_rows([flat(batch) for batch in loader])))


def all_rows(batches: list[Any]) -> list[Any]:
    return [row for _, _, rows in batches for row in rows]


@pytest.mark.thorough
def test_auto_asks_ray_for_workers_and_changes_no_batch(on_ray: RayCluster) -> None:
    loader = remote_loader(SlowRows(400, 0.01), seed=0, shuffle=True, num_workers="auto", backend=headrace.Ray(local=1))
    assert expected_of(SlowRows(400, 0), seed=0, shuffle=True) == [flat(batch) for batch in loader]
    assert "predicted" in str([event.text for event in loader.recording.events])


@pytest.mark.thorough
def test_cpus_are_free_again_after_the_loader(on_ray: RayCluster) -> None:
    import ray

    loader = remote_loader(SlowRows(40), seed=0)
    assert len(list(loader)) == 10
    del loader
    ray.init(on_ray.address, configure_logging=False, log_to_driver=False)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 2.0:
        assert time.monotonic() < deadline, ray.available_resources()
        ray.wait([ray.put(0)], timeout=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("program", ["HostActor", "host_main"])
def test_actors_and_hosts_that_are_killed_change_nothing(
    on_ray: RayCluster, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = remote_loader(SlowRows(240), seed=0, shuffle=True)
    found = []
    with caplog.at_level(logging.WARNING, "headrace"):
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number in (5, 25):
                kill_one(on_ray, program)

    assert expected_of(SlowRows(240, 0), seed=0, shuffle=True) == found
    assert "was lost" in caplog.text


def kill_one(cluster: RayCluster, program: str) -> None:
    """Kills one process of a cluster whose command or title names a program."""
    for number in cluster.processes():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
            if program in command and "placement" not in command:
                os.kill(number, signal.SIGKILL)
                return

    raise AssertionError(f"no process of the cluster is a {program}")


@pytest.mark.thorough
def test_too_large_a_worker_is_an_error_that_says_what_is_free(on_ray: RayCluster) -> None:
    loader = remote_loader(SlowRows(), seed=0, backend=headrace.Ray(num_cpus=64, start_timeout=2))
    with pytest.raises(headrace.errors.ClusterError, match="Ray has no machine for a worker") as caught:
        next(iter(loader))
    assert "a node that has 64 CPU free" in str(caught.value)


def test_a_cluster_that_is_not_there_is_an_error_with_its_address() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    loader = remote_loader(SlowRows(), seed=0, backend=headrace.Ray(address))
    with pytest.raises(headrace.errors.ClusterError, match="cannot connect to a Ray cluster") as caught:
        next(iter(loader))
    assert address in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        {"backend": headrace.Ray(local=3), "num_workers": 2},
        {"backend": "ray", "num_workers": 0},
        {"backend": "Ray", "num_workers": 2},
    ],
)
def test_arguments_that_make_no_sense_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(headrace.errors.UsageError):
        headrace.DataLoader(SlowRows(), **words)


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "ray://head:10001", "[::1]:6379", "auto", "local", None])
def test_addresses_of_clusters_are_taken(address: str | None) -> None:
    assert headrace.Ray(address).address == address


@pytest.mark.thorough
def test_what_cannot_be_pickled_is_named(on_ray: RayCluster) -> None:
    data = SlowRows()
    data.lock = threading.Lock()
    with pytest.raises(headrace.errors.UsageError, match=r"dataset: cannot pickle '_thread.lock' object"):
        next(iter(headrace.DataLoader(data, num_workers=1, backend="ray")))


@pytest.mark.thorough
def test_a_loader_whose_epoch_is_over_leaves_its_machines_to_another(on_ray: RayCluster) -> None:
    training = headrace.DataLoader(SlowRows(), batch_size=4, num_workers=ray_servers.NODES, backend="ray")
    trained = list(training)
    validation = list(headrace.DataLoader(SlowRows(), batch_size=4, num_workers=1, backend="ray"))
    assert len(validation) == len(trained)


@pytest.mark.parametrize(
    "words",
    [
        {"local": -1},
        {"local": True},
        {"num_cpus": "1"},
        {"num_cpus": float("nan")},
        {"address": 1},
        {"address": ""},
        {"address": "nohost"},
        {"address": "127.0.0.1:99999"},
        {"address": "http://127.0.0.1:8265"},
        {"resources": {"cpu_node": 0}},
        {"resources": {"GPU": 1}},
        {"start_timeout": 0},
        {"start_timeout": float("inf")},
    ],
)
def test_options_that_make_no_sense_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(headrace.errors.UsageError, match=next(iter(words))):
        headrace.Ray(**words)


SCRIPT = """
import os, sys
from typing import NamedTuple
import torch, headrace
from beside import double

class Batch(NamedTuple):
    rows: torch.Tensor
    pid: int

class Rows(headrace.Dataset):
    def __len__(self): return 12
    def __getitem__(self, key): return double(torch.full((9000,), key))

def collate(samples): return Batch(torch.stack(samples), os.getpid())

loader = headrace.DataLoader(Rows(), batch_size=4, seed=0, num_workers=1, backend="ray", collate_fn=collate)
batches = list(loader)
assert all(type(batch) is Batch for batch in batches), batches
assert os.getpid() not in {batch.pid for batch in batches}
print([batch.rows[:, 0].tolist() for batch in batches])
"""


@pytest.mark.thorough
def test_classes_of_the_script_and_modules_beside_it_travel_along(on_ray: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("def double(value): return value * 2\n")
    ended = programs.run([str(tmp_path / "train.py")], fresh=True)
    assert ended.stdout == "[[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]]\n"
    assert ended.stderr == ""


INTERRUPTED = """
import os, signal
import headrace
from tests.workers.remote.data import SlowRows

loader = headrace.DataLoader(SlowRows(400), batch_size=4, seed=0, num_workers=2, backend=headrace.Ray("local"))
batches = iter(loader)  # it is held until the end, so that workers still run then
for number, batch in enumerate(batches):
    if number == 5:
        os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.thorough
def test_a_script_that_is_interrupted_ends_its_own_cluster_without_a_word_of_ray() -> None:
    pytest.importorskip("ray")
    with ray_servers.own_folder() as folder:
        variables = {**os.environ, **ray_servers.variables_for(folder)}
        ended = programs.run(["-c", INTERRUPTED], env=variables, fresh=True)
        assert ended.stderr.count("Traceback") == 1
        assert ended.stderr.endswith("\nKeyboardInterrupt\n")
        assert ended.returncode == -signal.SIGINT
        assert ray_servers.processes_of(folder) == []


@pytest.mark.thorough
def test_placement_ends_by_itself_while_a_child_of_the_trainer_goes_on(
    on_ray: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.workers.remote.placement.ENDING", 60.0)
    placement = RayPlacement(headrace.Ray(on_ray.address))
    placement.open_door().close()
    process = placement._process
    assert process is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[placement._control.fileno()]) as child:
        placement.close()
        assert child.poll() is None
        child.communicate()
    assert process.returncode == 0


@pytest.mark.thorough
def test_the_epoch_goes_on_after_the_death_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with ray_servers.running() as cluster, variables_of(cluster, monkeypatch):
        loader = remote_loader(SlowRows(400, 0.01), seed=0, shuffle=True)
        found = []
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number == 20:
                kill_one(cluster, "gcs_server")

        assert expected_of(SlowRows(400, 0), seed=0, shuffle=True) == found


@pytest.mark.thorough
def test_without_the_head_a_lost_worker_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with ray_servers.running() as cluster, variables_of(cluster, monkeypatch):
        loader = remote_loader(SlowRows(4_000, 0.01), seed=0, backend=headrace.Ray(start_timeout=20), num_workers=1)
        keys: list[int] = []
        killed_at = 0.0
        with pytest.raises(headrace.errors.ClusterError):
            for number, batch in enumerate(loader):
                keys += (int(text.split()[1]) for text in batch["text"])
                if number == 5:
                    kill_one(cluster, "gcs_server")
                    kill_one(cluster, "host_main")
                    killed_at = time.monotonic()

        assert list(range(len(keys))) == keys
        log.info("the error came %.1f s after the kill", time.monotonic() - killed_at)
