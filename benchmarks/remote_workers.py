"""How fast batches of workers on other machines come: through headrace's connection, and through Ray's object store."""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import beside, fail, in_turn
from benchmarks.ready_samples import BATCH, DISTINCT, SHAPE, ReadySamples

NBYTES = BATCH * int(np.prod(SHAPE)) * 4
CHECKED = "Every batch was checked at three points of each sample."

Check = Callable[[int, torch.Tensor], None]


def new_check() -> Check:
    """Returns what compares a batch with the samples that belong there, at three points of each."""
    samples = ReadySamples(DISTINCT)

    def check(number: int, images: torch.Tensor) -> None:
        samples.check(number, images, torch.arange(number * BATCH, number * BATCH + len(images)))

    return check


def loader_of(batches: int, **options: Any) -> headrace.DataLoader[Any]:
    """Returns a loader whose workers are kept."""
    samples = ReadySamples(batches * BATCH)
    return headrace.DataLoader(samples, batch_size=BATCH, seed=0, persistent_workers=True, **options)


def epoch(loader: headrace.DataLoader[Any], check: Check) -> float:
    """Returns the seconds of an epoch."""
    began = time.perf_counter()
    count = 0
    for number, (images, _) in enumerate(loader):
        check(number, images)
        count += 1
    if count != len(loader):
        fail(f"{count} batches came instead of {len(loader)}")
    return time.perf_counter() - began


# -- Ray, in a process of its own --------------------------------------------------------------------------------------


class Maker:
    """An actor of Ray that makes batches."""

    def __init__(self) -> None:
        self.samples = ReadySamples(DISTINCT)

    def make(self, number: int) -> np.ndarray:
        """Makes a batch as a worker does."""
        numbers = range(number * BATCH, (number + 1) * BATCH)
        return torch.stack([self.samples[index][0] for index in numbers]).numpy()

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Makes a batch for Ray Data."""
        return {"id": rows["id"], "image": self.make(int(rows["id"][0]) // BATCH)}


def by_get(ray: Any, batches: int, workers: int) -> Iterator[torch.Tensor]:
    """Yields the batches of actors, two of each ahead."""
    makers = [ray.remote(Maker).remote() for _ in range(workers)]
    ray.get([maker.make.remote(0) for maker in makers])
    yield torch.empty(0)
    waiting = [makers[number % workers].make.remote(number) for number in range(min(2 * workers, batches))]
    for number in range(batches):
        images = ray.get(waiting.pop(0))
        ahead = number + 2 * workers
        if ahead < batches:
            waiting.append(makers[ahead % workers].make.remote(ahead))
        yield torch.from_numpy(images.copy())  # a copy, since what Ray gives is read-only


def by_data(ray: Any, batches: int, workers: int) -> Iterator[torch.Tensor]:
    """Yields the batches of Ray Data."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    actors = ray.data.ActorPoolStrategy(size=workers)
    dataset = ray.data.range(batches * BATCH, override_num_blocks=batches).map_batches(
        Maker, batch_size=BATCH, compute=actors
    )
    yield torch.empty(0)
    for batch in dataset.iter_torch_batches(batch_size=BATCH, prefetch_batches=2):
        yield batch["image"]


RAYS_WAYS = {"ray.get": by_get, "Ray Data": by_data}


def serve_ray(pipe: Connection, batches: int) -> None:
    """Runs Ray's own loops when asked, and tells the seconds of each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    import ray
    import ray.data
    from ray.cluster_utils import Cluster

    # Two nodes, so that Ray's batches cross a connection, too: the driver on one, all workers on the other.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 1 << 30})
    cluster.add_node(num_cpus=8, object_store_memory=1 << 30)
    ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    check = new_check()
    pipe.send(cluster.address)
    while True:
        way, workers = pipe.recv()
        if way == "end":
            break
        images = RAYS_WAYS[way](ray, batches, workers)
        next(images)  # the actors are there
        began = time.perf_counter()
        count = 0
        for number, batch in enumerate(images):
            check(number, batch)
            count += 1
        if count != batches:
            fail(f"{way} gave {count} batches instead of {batches}")
        pipe.send(time.perf_counter() - began)
    ray.shutdown()
    cluster.shutdown()
    pipe.send(0.0)


def by_ray(pipe: Connection, way: str, workers: int) -> float:
    """Returns the seconds of one of Ray's ways."""
    pipe.send((way, workers))
    try:
        seconds: float = pipe.recv()
    except EOFError:
        fail(f"{way} did not come to its end")
    return seconds


# -- a baseline -------------------------------------------------------------------------------------------------------


def send_bare(answer: Connection, batches: int) -> None:
    """Sends batches whenever it is asked for them. answer: is sent the port."""
    data = memoryview(np.ones(NBYTES, np.uint8))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        while connection.recv(1):
            for _ in range(batches):
                connection.sendall(data)


def receive(connection: socket.socket, batches: int, slots: list[memoryview]) -> float:
    """Receives batches into the slots in turn. Returns the seconds."""
    began = time.perf_counter()
    connection.sendall(b"g")
    for number in range(batches):
        target = slots[number % len(slots)]
        done = 0
        while done < NBYTES:
            done += connection.recv_into(target[done:])
    return time.perf_counter() - began


# -- all of them -------------------------------------------------------------------------------------------------------


def remote_workers(batches: int = 20, rounds: int = 5, workers: tuple[int, ...] = (1, 2)) -> list[Table]:
    """How fast batches of workers on other machines come: through headrace's connection, and through Ray's store.

    Ready 64x3x224x224 float32 batches (38.5 MB) on loopback: of two Ray nodes on this machine, one has the trainer and
    one the workers. In turn: headrace's local worker processes, its remote workers, actors of Ray whose arrays
    `ray.get` fetches, Ray Data's `iter_torch_batches`, and a baseline that sends the same bytes over TCP into memory
    that was touched before. Each batch is checked at three points of each sample.
    """
    check = new_check()
    slots = [memoryview(np.zeros(NBYTES, np.uint8)) for _ in range(4)]
    rows = []
    with beside(serve_ray, batches) as pipe, beside(send_bare, batches) as sender:
        address = pipe.recv()
        connection = socket.create_connection(("127.0.0.1", sender.recv()))
        for number in workers:
            local = loader_of(batches, num_workers=number)
            remote = loader_of(batches, num_workers=number, backend=headrace.Ray(address))
            calls: dict[str, Callable[[], float]] = {
                "local processes": functools.partial(epoch, local, check),
                OURS: functools.partial(epoch, remote, check),
                "baseline TCP": functools.partial(receive, connection, batches, slots),
                **{way: functools.partial(by_ray, pipe, way, number) for way in RAYS_WAYS},
            }
            found = in_turn(calls, rounds)
            del local, remote, calls
            rates = {name: [batches * NBYTES / seconds / 1e9 for seconds in turns] for name, turns in found.items()}
            rows.append(Row(f"{number} workers", rates))
        connection.close()
        by_ray(pipe, "end", 0)
    return [Table("batches of 38.5 MB over loopback", "GB/s", rows, CHECKED, base="ray.get")]
