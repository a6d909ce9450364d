"""What a GPU does with batches beside the model: graphs that read them, normalising, and decoding.

Experiments 9 to 11 of `benchmarks/device.py`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch

import headrace
from benchmarks.harness.device_loaders import (
    BATCH,
    Batch,
    Checker,
    Rows,
    moved_in_the_loop,
    one_ahead,
    seconds_per_step,
)
from benchmarks.harness.figures import Budget, Figures, in_turn_within
from benchmarks.harness.gpu import Gpu, noise

# -- 9 -----------------------------------------------------------------------------------------------------------------


def graphs(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """A graph that is recorded once and reads each batch: at fixed addresses, or where the loop copies it to."""
    nbytes = gpu.pick(38_535_168, 65_536)
    workers = gpu.pick(8, 2)
    ready = gpu.pick(4, 2) * workers
    dataset = Rows(nbytes // BATCH, BATCH * ready)
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "prefetch_factor": ready // workers}
    options |= {"persistent_workers": True, "multiprocessing_context": "fork"}
    fixed = headrace.DataLoader(dataset, device="cuda", fixed_addresses=True, **options)
    pinned = headrace.DataLoader(dataset, pin_memory=True, **options)

    checker = Checker(gpu, dataset)
    epoch = iter(fixed)
    first = next(epoch)
    replay = gpu.recorded(lambda: checker.compare(first))
    moved: set[int] = set()
    for batch in itertools.islice(epoch, 5):
        moved |= {part.data_ptr() for part in batch} ^ {part.data_ptr() for part in first}
        replay()
    del epoch, batch
    figures.add("fixed addresses: addresses that differ from the first", len(moved), goal="0", met=not moved)

    own = [gpu.empty((BATCH, nbytes // BATCH)), gpu.empty((BATCH,), torch.int64)]
    for target, source in zip(own, first, strict=True):
        gpu.copy(target, source)
    replay_own = gpu.recorded(lambda: checker.compare(own))

    def copied_and_replayed(batch: Batch) -> None:
        for target, source in zip(own, batch, strict=True):
            gpu.copy(target, source)
        replay_own()

    steps = ready - 3
    parties = {
        "fixed addresses": functools.partial(
            seconds_per_step, gpu, lambda: iter(fixed), steps, lambda _: replay(), checker.look
        ),
        "copied by the loop": functools.partial(
            seconds_per_step, gpu, lambda: iter(pinned), steps, copied_and_replayed, lambda _: None
        ),
    }
    for party in parties.values():
        party()
    for name, values in in_turn_within(parties, gpu.pick(5, 1), budget).items():
        figures.add(f"replayed, {name}", median(values) * 1e3, "ms a step", values=[value * 1e3 for value in values])
    wrong = checker.wrong()
    figures.add("replayed: wrong rows", wrong, goal="0", met=wrong == 0)

    within = functools.partial(_repeated, 20, lambda: gpu.copy(own[0], first[0]))
    seconds = min(gpu.seconds(within) for _ in range(5)) / 20
    figures.add(
        f"a copy of {nbytes / 1e6:.1f} MB within the device", seconds * 1e6, "us", goal="26", met=seconds < 40e-6
    )


def _repeated(count: int, work: Callable[[], object]) -> None:
    for _ in range(count):
        work()


# -- 10 ----------------------------------------------------------------------------------------------------------------


def normalising(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """Bytes to normalised bfloat16, on the stream of the copy or on that of the loop, beside products of matrices."""
    images = gpu.pick(256, 4)
    side = gpu.pick(224, 8)
    shape = (images, 3, side, side)
    pixels = noise(torch.Size(shape).numel()).view(shape)
    source = gpu.pinned(pixels.numel()).view(shape)
    source.copy_(pixels)
    scale = gpu.moved(torch.tensor([1 / 58.4, 1 / 57.1, 1 / 57.4], dtype=torch.bfloat16).view(3, 1, 1))
    shift = gpu.moved(torch.tensor([-2.12, -2.04, -1.80], dtype=torch.bfloat16).view(3, 1, 1))

    def normalised(batch: Batch) -> Batch:
        return gpu.run(lambda: [torch.mul(part, scale).add_(shift) for part in batch])

    there = [gpu.moved(source)]
    gpu.synchronize()
    normalised(there)
    alone = min(gpu.seconds(lambda: _repeated(10, lambda: normalised(there))) for _ in range(5)) / 10
    size = f"{pixels.numel() / 1e6:.1f} MB"
    figures.add(f"normalising {size}, alone", alone * 1e6, "us", goal="40", met=None)

    steps = gpu.pick(60, 4)
    count = gpu.matmuls_for(gpu.pick(2e-3, 1e-5))

    def batches() -> Any:
        return itertools.repeat([source], steps + 3)

    def computed(batch: Batch) -> None:
        gpu.matmuls(count)

    def normalised_here(batch: Batch) -> None:
        normalised(batch)
        gpu.matmuls(count)

    ways: dict[str, tuple[Callable[[], Any], Callable[[Batch], None]]] = {
        "no batches": (lambda: itertools.repeat(there, steps + 3), computed),
        "a copy on the loop's stream": (lambda: moved_in_the_loop(gpu, batches()), computed),
        "a copy ahead": (lambda: one_ahead(gpu, batches()), computed),
        "a copy ahead, normalised by the loop": (lambda: one_ahead(gpu, batches()), normalised_here),
        "a copy ahead, normalised there": (lambda: one_ahead(gpu, batches(), normalised), computed),
    }
    parties = {name: functools.partial(_quiet_seconds, gpu, way, steps, step) for name, (way, step) in ways.items()}
    for party in parties.values():
        party()
    found = in_turn_within(parties, gpu.pick(9, 2), budget)
    for name, values in found.items():
        slower = median(value / base - 1 for value, base in zip(values, found["no batches"], strict=True))
        figures.add(f"{size}, {name}: a step", median(values) * 1e3, "ms")
        figures.add(f"{size}, {name}: slower than no batches by", slower * 100, "%")


def _quiet_seconds(gpu: Gpu, way: Callable[[], Any], steps: int, step: Callable[[Batch], object]) -> float:
    """As `seconds_per_step`, where there are no workers to wait for."""
    batches = way()
    next(batches)
    timed = functools.partial(_stepped, itertools.islice(batches, steps), step)
    seconds = gpu.seconds(timed) / steps
    for _ in batches:
        pass
    return seconds


def _stepped(batches: Any, step: Callable[[Batch], object]) -> None:
    for batch in batches:
        step(batch)


# -- 11 ----------------------------------------------------------------------------------------------------------------


def decoding(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """JPEGs to pixels on the device, by one to four threads, and on all cores of this machine."""
    try:
        jpegs = importlib.import_module("torchvision.io")
    except (ImportError, RuntimeError) as error:  # missing, or made for another torch
        figures.skip("decoding on the device", f"no torchvision: {error}")
        return

    shapes = gpu.pick([(375, 500), (1125, 1500)], [(37, 50)])
    for place, (height, width) in enumerate(shapes):
        _decoding_of(gpu, figures, budget.share(len(shapes) - place), jpegs, (height, width))


def _decoding_of(gpu: Gpu, figures: Figures, budget: Budget, jpegs: Any, shape: tuple[int, int]) -> None:
    """Measures images of one size."""
    size = f"{shape[1]} x {shape[0]}"
    files = _jpegs(jpegs, shape, gpu.pick(32, 1)) * 4

    def there(some: list[torch.Tensor]) -> object:
        return jpegs.decode_jpeg(some, device=gpu.device)

    try:
        there(files[:1])
    except RuntimeError as error:
        figures.skip(f"{size}, on the device", str(error))
        return

    def split(pool: ThreadPoolExecutor, decode: Callable[[list[torch.Tensor]], object], parts: int) -> float:
        pieces = [files[start::parts] for start in range(parts)]
        return len(files) / gpu.seconds(lambda: list(pool.map(decode, pieces)))

    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        parties: dict[str, Callable[[], float]] = {
            f"on the device, {threads} threads": functools.partial(split, pool, there, threads) for threads in (1, 2, 4)
        }
        parties[f"on {cores} cores"] = functools.partial(split, pool, jpegs.decode_jpeg, len(files))
        for party in parties.values():
            party()
        rates = {name: median(values) for name, values in in_turn_within(parties, gpu.pick(7, 1), budget).items()}
    for name, rate in rates.items():
        figures.add(f"{size}, {name}", rate, "images/s")
    best = max(rate for name, rate in rates.items() if name.startswith("on the device"))
    figures.add(f"{size}, the device to {cores} cores", best / rates[f"on {cores} cores"], "x", goal="> 1", met=None)
    _decoded_beside(gpu, figures, size, lambda: there(files))


def _jpegs(jpegs: Any, shape: tuple[int, int], count: int) -> list[torch.Tensor]:
    """Returns files of smooth pictures, uint8 [bytes] each."""
    chance = torch.Generator().manual_seed(1)
    files = []
    for _ in range(count):
        coarse = torch.rand(1, 3, 24, 32, generator=chance)
        picture = torch.nn.functional.interpolate(coarse, shape, mode="bilinear").mul_(255).to(torch.uint8)[0]
        grain = torch.randint(0, 12, picture.shape, generator=chance, dtype=torch.uint8)
        files.append(jpegs.encode_jpeg((picture // 2 + grain), quality=90))
    return files


def _decoded_beside(gpu: Gpu, figures: Figures, size: str, decode: Callable[[], object]) -> None:
    """Measures how much slower products of matrices are while a thread decodes on a stream of its own."""
    count = gpu.matmuls_for(gpu.pick(0.2, 1e-5))
    alone = min(gpu.seconds(lambda: gpu.matmuls(count)) for _ in range(3))
    over = threading.Event()
    begun = threading.Event()
    side = gpu.new_stream()

    def again_and_again() -> None:
        with gpu.using(side):
            while not over.is_set():
                decode()
                begun.set()

    thread = threading.Thread(target=again_and_again)
    thread.start()
    try:
        begun.wait(10)
        times = [_seconds_on_this_stream(gpu, count) for _ in range(3)]
    finally:
        over.set()
        thread.join()
    slower = median(times) / alone - 1
    figures.add(f"{size}, decoded beside: products of matrices are slower by", slower * 100, "%")


def _seconds_on_this_stream(gpu: Gpu, count: int) -> float:
    """Returns the seconds of so many products of matrices, whatever other streams do."""
    began = time.perf_counter()
    gpu.matmuls(count)
    done = gpu.accelerator.event(gpu.accelerator.stream())
    if done is not None:
        done.synchronize()
    return time.perf_counter() - began
