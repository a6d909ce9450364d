"""Ray's own ways of bringing batches, run in a process of their own; see remote_workers.py."""

from __future__ import annotations

import logging
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from transport import BATCH, DISTINCT, SHAPE, ReadySamples

NBYTES = BATCH * int(np.prod(SHAPE)) * 4


class Check:
    """Compares batches with the samples that belong there, at three points of each."""

    def __init__(self) -> None:
        self._dataset = ReadySamples(DISTINCT)

    def __call__(self, number: int, images: torch.Tensor) -> None:
        labels = torch.arange(number * BATCH, number * BATCH + len(images))
        self._dataset.check(number, images, labels)


def stacked(samples: ReadySamples, number: int) -> np.ndarray:
    """Makes a batch as a worker does."""
    numbers = range(number * BATCH, (number + 1) * BATCH)
    return torch.stack([samples[index][0] for index in numbers]).numpy()


def serve_ray(pipe: Connection, batches: int) -> None:
    """Runs Ray's own loops when asked, and tells the seconds of each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    import ray
    from ray.cluster_utils import Cluster

    # Two nodes, so that Ray's batches cross a connection, too: the driver on one, all workers on the other.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 1 << 30})
    cluster.add_node(num_cpus=8, object_store_memory=1 << 30)
    ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    check = Check()

    class Maker:
        def __init__(self) -> None:
            self.samples = ReadySamples(DISTINCT)

        def make(self, number: int) -> np.ndarray:
            return stacked(self.samples, number)

    def by_get(workers: int) -> None:
        makers = [ray.remote(Maker).remote() for _ in range(workers)]
        ray.get([maker.make.remote(0) for maker in makers])
        pipe.send("ready")
        pipe.recv()
        waiting = [makers[number % workers].make.remote(number) for number in range(2 * workers)]
        for number in range(batches):
            images = ray.get(waiting.pop(0))
            if number + 2 * workers < batches:
                ahead = number + 2 * workers
                waiting.append(makers[ahead % workers].make.remote(ahead))
            check(number, torch.from_numpy(images.copy()))  # a copy, since what Ray gives is read-only
        pipe.send("done")

    def by_data(workers: int) -> None:
        from ray.data import ActorPoolStrategy

        class MakeBatches:
            def __init__(self) -> None:
                self.samples = ReadySamples(DISTINCT)

            def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
                return {"id": rows["id"], "image": stacked(self.samples, int(rows["id"][0]) // BATCH)}

        ray.data.DataContext.get_current().enable_progress_bars = False
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        dataset = ray.data.range(batches * BATCH, override_num_blocks=batches).map_batches(
            MakeBatches, batch_size=BATCH, compute=ActorPoolStrategy(size=workers)
        )
        pipe.send("ready")
        pipe.recv()
        count = 0
        for number, batch in enumerate(dataset.iter_torch_batches(batch_size=BATCH, prefetch_batches=2)):
            check(number, batch["image"])
            count += 1
        if count != batches:
            raise SystemExit(f"Ray Data gave {count} batches instead of {batches}")
        pipe.send("done")

    pipe.send(cluster.address)
    while (asked := pipe.recv()) is not None:
        {"get": by_get, "data": by_data}[asked[0]](asked[1])
    ray.shutdown()
    cluster.shutdown()
