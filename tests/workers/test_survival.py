"""The loader delivers what there is to deliver, whatever breaks and whoever dies, and does not grow."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import DataLoader, OnError
from headrace.testing import Attempts, descendants
from headrace.testing.belongings import Belongings
from tests.belongings import own_memory
from tests.workers.corrupt_photos import WAYS, CorruptPhotos
from tests.workers.datasets import Photos

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

WORKERS = 2


def fire(iterator: Any, draw: random.Random, every: int, killed: list[int]) -> Iterator[Any]:
    """Yields the batches of an iterator, and kills a worker about once in `every` batches. killed: gets their pids.

    Not by the clock: on a busy machine the same worker would die again and again before it has made anything.
    """
    next_kill = draw.randrange(every)
    for number, batch in enumerate(iterator):
        if number == next_kill:
            killed.append(draw.choice(iterator._workers).pid)
            os.kill(killed[-1], signal.SIGKILL)
            next_kill += every + draw.randrange(every)
        yield batch


def corrupt_epoch(
    photos: CorruptPhotos, method: str, quarantine: Path | None, *, limit: float, every: int | None
) -> tuple[list[torch.Tensor], list[list[int]], list[int]]:
    """Returns the batches of an epoch, their keys and the workers that were killed.

    every: batches between two kills; None: no kill.
    """
    loader = DataLoader(
        photos, batch_size=16, shuffle=True, seed=3, num_workers=2, multiprocessing_context=method,
        on_error=OnError("replace", log=quarantine, timeout=limit),
    )  # fmt: skip
    images, keys, killed = [], [], list[int]()
    batches = iter(loader)
    if every is not None:
        batches = fire(batches, random.Random(11), every, killed)
    for pixels, numbers in batches:
        images.append(pixels)  # in leased memory, of workers that may have died since
        keys.append(numbers.tolist())
    assert loader.faults.restarts >= len(killed) / 2  # one that was about to be ended may be killed, too
    return images, keys, killed


def survives(tmp_path: Path, method: str, length: int, *, share: float, limit: float, every: int) -> None:
    folder, quarantine = tmp_path / "photos", tmp_path / "bad.jsonl"
    folder.mkdir()
    photos = CorruptPhotos(folder, length, share, hanging=1)
    assert set(photos.broken.values()) >= {"hangs", *WAYS}

    images, keys, killed = corrupt_epoch(photos, method, quarantine, limit=limit, every=every)
    assert len(killed) >= 2
    full, rest = divmod(length, 16)
    assert [len(batch) for batch in keys] == [16] * full + [rest] * bool(rest)

    lines = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert Counter(line["key"] for line in lines) == Counter(photos.broken.keys())
    assert {line["action"] for line in lines} == {"replace"}
    instead = {line["key"]: line["replacement"] for line in lines}
    assert not set(instead.values()) & set(photos.broken)
    order = list(DataLoader(range(length), batch_size=None, shuffle=True, seed=3).sampler)
    assert sorted(order) == list(range(length))
    assert list(itertools.chain(*keys)) == [instead.get(key, key) for key in order]

    undisturbed, same_keys, _ = corrupt_epoch(photos, method, None, limit=limit, every=None)
    assert same_keys == keys
    assert all(torch.equal(one, two) for one, two in zip(images, undisturbed, strict=True))


@pytest.mark.thorough
def test_every_good_sample_is_delivered_and_every_bad_one_is_replaced_and_recorded(tmp_path: Path) -> None:
    survives(tmp_path, "fork", 1000, share=0.02, limit=1.0, every=8)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ten_thousand_samples_survive(tmp_path: Path, method: str) -> None:
    survives(tmp_path, method, 10_000, share=0.01, limit=1.0, every=25)


class SlowPhotos(Photos):
    """Photos that take a moment to read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return super().__getitem__(index)


def possessions() -> tuple[int, int, int]:
    """Returns how many descriptors, children and threads there are."""
    return len(list(Path("/proc/self/fd").iterdir())), len(descendants()), threading.active_count()


def epochs_under_fire(persistent: bool, epochs: int) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """Yields what the process has, the memory of all, and how many regions batches lie in, after each epoch."""
    loader = DataLoader(SlowPhotos(64, side=16), batch_size=8, num_workers=WORKERS, persistent_workers=persistent)
    draw, killed = random.Random(5), list[int]()
    for epoch in range(epochs):
        batches = iter(loader)
        if epoch % 3 == 0:
            batches = fire(batches, draw, 8, killed)
        keys = [key for _, batch in batches for key in batch.tolist()]
        assert keys == list(range(64))
        del batches
        assert loader._session.resources.arena is not None
        yield possessions(), own_memory(), loader._session.resources.arena._in_file
    assert len(killed) >= epochs // 4
    assert loader.faults.restarts >= epochs // 6  # a worker that is killed behind its last batch may not be missed


def does_not_grow(persistent: bool, epochs: int) -> None:
    before = Belongings.now()
    seen, memory, regions = zip(*epochs_under_fire(persistent, epochs), strict=True)
    early = max(5, epochs // 8)
    half = (early + epochs) // 2
    descriptors = [count for count, _, _ in seen[early:]]
    assert max(descriptors) <= min(descriptors) + WORKERS  # one for each fork that is over, until the next fork
    assert {(children, threads) for _, children, threads in seen[early:]} == {seen[early][1:]}
    assert Belongings.now().beyond(before).shared == frozenset()
    # What nobody maps any more is in nobody's memory, but in the file all the same.
    assert regions[-1] == regions[2]
    assert statistics.median(memory[half:]) <= statistics.median(memory[early:half]) + (4 << 20)


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_are_killed_leave_nothing_behind(persistent: bool) -> None:
    does_not_grow(persistent, epochs=25)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("persistent", [False, True])
def test_two_hundred_epochs_with_kills_do_not_grow(persistent: bool) -> None:
    does_not_grow(persistent, epochs=200)


class Waiting(Photos):
    """Photos of which one waits for a file to be made."""

    def __init__(self, gate: Path, attempts: Attempts) -> None:
        super().__init__(40, side=16)
        self.gate = gate
        self.attempts = attempts

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.attempts.count(index)
        while index == 8 and not self.gate.exists():
            time.sleep(0.005)
        return super().__getitem__(index)


def test_a_worker_that_dies_while_it_has_nothing_to_do_is_replaced(tmp_path: Path) -> None:
    with Attempts() as attempts:
        loader = DataLoader(Waiting(tmp_path / "gate", attempts), batch_size=2, num_workers=2)
        iterator = iter(loader)
        keys = [next(iterator)[1].tolist() for _ in range(2)]
        idle = iterator._workers[1]
        while not (attempts.of(11) and sleeps(idle.pid)):  # its part of what may be prefetched is made
            time.sleep(0.005)
        idle.kill()
        idle.join()
        (tmp_path / "gate").touch()
        keys += [batch.tolist() for _, batch in iterator]
    assert keys == [[key, key + 1] for key in range(0, 40, 2)]
    assert loader.faults.restarts == 1


def sleeps(pid: int) -> bool:
    """Whether a process waits for something, and still does a moment later."""
    states = []
    for _ in range(3):
        states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.01)
    return states == ["S"] * 3


def test_threads_end_with_their_iterator_without_the_garbage_collector() -> None:
    loader = DataLoader(Photos(64, side=16), batch_size=4, num_workers=2, backend="thread")
    gc.collect()
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator)
        workers = list(iterator._workers)
        assert len(workers) == 2
        del iterator
        assert [worker.is_alive() for worker in workers] == [False, False]
    finally:
        gc.enable()
