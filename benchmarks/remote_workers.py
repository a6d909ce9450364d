"""How fast batches of workers on other machines come: through headrace's connection, and through Ray's object store.

Ready 64x3x224x224 float32 batches (38.5 MB) on loopback: of two Ray nodes on this machine, one has the trainer and one
the workers. In turn:
headrace's local worker processes, its remote workers, actors of Ray whose arrays `ray.get` fetches, Ray Data's
`iter_torch_batches`, and a bare loop that sends the same bytes over TCP into memory that was touched before. Each batch
is checked at three points of each sample. Printed are medians over the rounds.

    python benchmarks/remote_workers.py [--batches 40] [--rounds 5] [--workers 1 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import headrace
import results
from ray_rows import NBYTES, Check, serve_ray
from transport import BATCH, ReadySamples

CHECKED = "Every batch was checked at three points of each sample."


def loader_loop(batches: int, check: Check, **options: Any) -> Callable[[], None]:
    """Returns an epoch over a loader whose workers are kept."""
    loader = headrace.DataLoader(
        ReadySamples(batches * BATCH), batch_size=BATCH, seed=0, persistent_workers=True, **options
    )

    def loop() -> None:
        count = 0
        for number, (images, _) in enumerate(loader):
            check(number, images)
            count += 1
        if count != batches:
            raise SystemExit(f"{count} batches came instead of {batches}")

    return loop


# -- Ray, in a process of its own --------------------------------------------------------------------------------------


def ray_loop(pipe: Connection, kind: str, workers: int) -> Callable[[], float]:
    def loop() -> float:
        pipe.send((kind, workers))
        if pipe.recv() != "ready":
            raise SystemExit("Ray did not get ready")
        began = time.perf_counter()
        pipe.send("go")
        if pipe.recv() != "done":
            raise SystemExit("Ray did not come to its end")
        return time.perf_counter() - began

    return loop


# -- a bare loop -------------------------------------------------------------------------------------------------------


def send_bare(port: int, batches: int) -> None:
    data = memoryview(np.ones(NBYTES, np.uint8))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(1):
            for _ in range(batches):
                connection.sendall(data)


def bare_loop(batches: int) -> tuple[Callable[[], None], Any]:
    """Returns a loop that receives batches into four slots in turn."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    sender = multiprocessing.get_context("spawn").Process(target=send_bare, args=(port, batches), daemon=True)
    sender.start()
    connection, _ = listener.accept()
    slots = [memoryview(np.zeros(NBYTES, np.uint8)) for _ in range(4)]

    def loop() -> None:
        connection.sendall(b"g")
        for number in range(batches):
            target = slots[number % 4]
            done = 0
            while done < NBYTES:
                done += connection.recv_into(target[done:])

    return loop, connection


# -- all of them -------------------------------------------------------------------------------------------------------


def measure(batches: int, rounds: int, workers: int, pipe: Connection, address: str) -> dict[str, list[float]]:
    """Returns the rates of all loops in all rounds, in GB/s."""
    check = Check()
    bare, connection = bare_loop(batches)
    timed: dict[str, Callable[[], Any]] = {
        "local processes": loader_loop(batches, check, num_workers=workers),
        results.OURS: loader_loop(batches, check, num_workers=workers, backend=headrace.Ray(address)),
        "bare TCP": bare,
        "ray.get": ray_loop(pipe, "get", workers),
        "Ray Data": ray_loop(pipe, "data", workers),
    }
    rates: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(rounds + 1):
        for name, loop in timed.items():
            began = time.perf_counter()
            seconds = loop() or time.perf_counter() - began
            if turn:
                rates[name].append(batches * NBYTES / seconds / 1e9)
    connection.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    results.option(parser)
    arguments = parser.parse_args()

    pipe, theirs = multiprocessing.Pipe()
    helper = multiprocessing.get_context("spawn").Process(target=serve_ray, args=(theirs, arguments.batches))
    helper.start()
    address = pipe.recv()
    rows = []
    for workers in arguments.workers:
        rates = measure(arguments.batches, arguments.rounds, workers, pipe, address)
        rows.append(results.Row(f"{workers} workers", rates))

    pipe.send(None)
    helper.join()
    table = results.Table("batches of 38.5 MB over loopback", "GB/s", rows, CHECKED, base="ray.get")
    results.show(table)
    results.write(arguments.json, [table], peers=["ray"])


if __name__ == "__main__":
    main()
