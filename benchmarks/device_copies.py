"""Memory of this machine on its way to a GPU, without a loader: what copies cost, what page-locking costs, what breaks.

Experiments 0 to 4 of `benchmarks/device.py`.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.harness.device_loaders import room_in_shm
from benchmarks.harness.figures import Budget, Figures, in_turn_within
from benchmarks.harness.gpu import Gpu, card, noise
from headrace.device.transfer import Transfers
from headrace.shared_memory.arena import Arena, InboundRegion
from headrace.shared_memory.leases import tensor_over
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.shared_memory.memory import FIRST_CHUNK, AnonymousBacking, FileBacking, address_of
from headrace.shared_memory.page_lock import LockableMapping
from headrace.shared_memory.slots_in_flight import SlotsInFlight
from headrace.shared_memory.writer_memory import WriterMemory, aligned

GB = 1e9


class BareArena:
    """A worker and the loop's side of it, in one process: each has its own mapping of the same memory."""

    def __init__(self, gpu: Gpu) -> None:
        self.region: InboundRegion = Arena().borrow(gpu.lock)
        self._writer: WriterMemory = self.region.ticket().writer()
        self.slot: Any = None
        """The slot of the last batch."""

    def written(self, value: int, nbytes: int) -> None:
        """Has the worker write a batch of this value in each byte: into a slot that has come back, if any has."""
        self._writer.give_back(self.region.returned())
        self.slot, array = self._writer.take(nbytes)
        array[:] = value
        del array
        self._writer.finish({self.slot})

    def taken_in(self, nbytes: int) -> torch.Tensor:
        """Returns the last batch, as the loop gets it."""
        lease = self.region.lease(self.slot, nbytes)
        self.region.hand_over([self.slot])
        return tensor_over(lease, (nbytes,), torch.uint8)

    def batch(self, value: int, nbytes: int) -> torch.Tensor:
        """Returns a new batch, each byte of which has this value."""
        self.written(value, nbytes)
        return self.taken_in(nbytes)

    def discard(self) -> None:
        """Gives the pages of the last slot back, although they are locked: the mistake that headrace does not make."""
        region = self.region._region
        region.backing.discard(region._chunk(self.slot.chunk), self.slot.offset, self.slot.capacity)


def chunk_for(nbytes: int) -> int:
    """Returns the number of the first chunk that holds so many bytes."""
    return max(0, (-(-nbytes // FIRST_CHUNK) - 1).bit_length())


def is_locked(gpu: Gpu, tensor: torch.Tensor) -> bool:
    """Tells whether all of a tensor is page-locked by headrace."""
    return gpu.lock.range_of(tensor.data_ptr(), tensor.nbytes) is not None


def others_than(gpu: Gpu, tensor: torch.Tensor, value: int) -> int:
    """Waits for the device, and returns how many bytes of a tensor there have another value."""
    return gpu.run(lambda: int((tensor != value).sum()))


# -- 0 -----------------------------------------------------------------------------------------------------------------


def machine(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """What the machine is, and whether shared memory can be page-locked here at all."""
    if not gpu.is_simulated:
        told = torch.cuda.get_device_properties(gpu.device)
        figures.add("card", told.name, f"{told.total_memory / GB:.0f} GB")
    driver = card()
    if driver.get("pcie.link.gen.max", "").isdigit():
        generation = driver["pcie.link.gen.max"]
        figures.add("PCIe generation, at most", generation, goal="5", met=generation == "5")
        figures.add(
            "PCIe generation and width, now", f"{driver['pcie.link.gen.current']} x{driver['pcie.link.width.current']}"
        )
    else:
        figures.skip("PCIe generation", "nvidia-smi does not say")

    figures.add("cores", len(os.sched_getaffinity(0)))
    figures.add("NUMA nodes", len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    figures.add("limit on locked memory", "none" if limit == resource.RLIM_INFINITY else f"{limit / GB:.3g} GB")
    figures.add("room in /dev/shm", room_in_shm() / GB, "GB")
    for name in ("enabled", "shmem_enabled"):
        path = Path("/sys/kernel/mm/transparent_hugepage") / name
        figures.add(f"huge pages, {name}", path.read_text().strip() if path.exists() else "unknown")
    figures.add("cuda.bindings", "there" if _driver_bindings() is not None else "missing")
    event = gpu.accelerator.event()
    figures.add("what ends a lease", "simulated" if gpu.is_simulated else type(event.events[0]).__name__)  # type: ignore[union-attr]

    nbytes = 1 << 20
    local = LockedMemory(gpu.lock).empty((nbytes,), torch.uint8)
    for name, slot in {"memfd": BareArena(gpu).batch(7, nbytes), "anonymous": local.fill_(7)}.items():
        locked = is_locked(gpu, slot)
        figures.add(f"{name} pages can be page-locked", "yes" if locked else "no", goal="yes", met=locked)
        figures.add(f"{name} pages: torch's is_pinned()", str(slot.is_pinned()), goal="True", met=slot.is_pinned())
        arrived = gpu.moved(slot)
        wrong = others_than(gpu, arrived, 7)
        figures.add(f"{name} pages: wrong bytes on the device", wrong, goal="0", met=wrong == 0)


def _driver_bindings() -> Any:
    """Returns `cuda.bindings.driver`; None: it is missing."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None


# -- 1 -----------------------------------------------------------------------------------------------------------------


def bandwidth(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """How fast copies to the device are: from ordinary memory, torch's page-locked memory, and page-locked slots."""
    largest = gpu.pick(1 << 30, 1 << 18)
    sizes = gpu.pick([4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30], [4 << 10, 1 << 18])
    content = noise(largest)
    sources = {
        "ordinary memory": content,
        "torch-pinned": gpu.pinned(largest),
        "slot": LockedMemory(gpu.lock).empty((largest,), torch.uint8),
    }
    huge = _huge_slot(gpu, largest, figures)
    if huge is not None:
        sources["slot, huge pages"] = huge
    for name, source in list(sources.items()):
        if name.startswith("slot") and not is_locked(gpu, source):
            figures.skip(f"copies from a {name}", "page-locking was refused")
            del sources[name]
        elif source is not content:
            source.copy_(content)

    target = gpu.empty((largest,))
    for nbytes in sizes:
        _bandwidth_of(gpu, figures, budget, sources, target[:nbytes])

    expected = int(content.view(torch.int64).sum())
    for name, source in sources.items():
        gpu.copy(target, source)
        found = gpu.run(lambda: int(target.view(torch.int64).sum()))
        figures.add(
            f"from {name}: sum of all bytes is right", str(found == expected), goal="True", met=found == expected
        )


def _bandwidth_of(
    gpu: Gpu, figures: Figures, budget: Budget, sources: dict[str, torch.Tensor], target: torch.Tensor
) -> None:
    """Measures copies of one size."""
    nbytes = target.numel()
    count = max(1, min(50, (256 << 20) // nbytes))

    def copies(source: torch.Tensor) -> Callable[[], float]:
        part = source[:nbytes]

        def work() -> None:
            for _ in range(count):
                gpu.copy(target, part)

        work()
        return lambda: count * nbytes / gpu.seconds(work) / GB

    rates = in_turn_within({name: copies(source) for name, source in sources.items()}, gpu.pick(9, 2), budget)
    size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    for name, found in rates.items():
        goal, met = "", None
        if name != "ordinary memory" and nbytes >= 16 << 20:
            goal, met = ">= 50 on PCIe 5", median(found) >= 50
        figures.add(f"{size} from {name}", median(found), "GB/s", goal=goal, met=met, values=found)
    for name in sources:
        if name.startswith("slot"):
            ratio = median(a / b for a, b in zip(rates[name], rates["torch-pinned"], strict=True))
            goal, met = ">= 0.98", ratio >= 0.98
            figures.add(f"{size} from {name}, to torch-pinned", ratio, "x", goal=goal, met=met)


def _huge_slot(gpu: Gpu, nbytes: int, figures: Figures) -> torch.Tensor | None:
    """Returns page-locked memory of huge pages, as far as there are any; None: the system knows none."""
    mapping = AnonymousBacking().map(0, chunk_for(nbytes))
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        figures.skip("copies from a slot, huge pages", str(error))
        return None

    array = np.frombuffer(mapping, np.uint8, nbytes)
    array[:] = 1
    figures.add("huge pages in the slot of huge pages", min(_huge_bytes(address_of(array)), nbytes) / nbytes * 100, "%")
    mapping.lock_up_to(nbytes, gpu.lock)
    return tensor_over(array, (nbytes,), torch.uint8)


def _huge_bytes(address: int) -> int:
    """Returns how many bytes of the mapping at an address lie in huge pages."""
    inside = False
    maps = Path("/proc/self/smaps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            start, stop = (int(text, 16) for text in words[0].split("-"))
            inside = start <= address < stop
        elif inside and words[0] == "AnonHugePages:":
            return int(words[1]) << 10
    return 0


# -- 2 -----------------------------------------------------------------------------------------------------------------


def registration(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """How long page-locking takes, for each GB and for the first batch."""
    total = gpu.pick(1 << 30, 1 << 20)
    for step in gpu.pick([64 << 20, 256 << 20, 1 << 30], [1 << 18, 1 << 20]):
        if budget.is_over():
            figures.skip(f"page-locking in steps of {step >> 20} MiB", "no time was left")
            continue
        found = [_locked_in_steps(gpu, total, step) for _ in range(2)]
        for name, values in zip(("touching", "page-locking", "unlocking"), zip(*found, strict=True), strict=True):
            each = min(values) / (total / GB)
            goal, met = ("<= 1", each <= 1) if name == "page-locking" else ("", None)
            figures.add(f"{name} in steps of {step / (1 << 20):g} MiB", each, "s/GB", goal=goal, met=met)

    # Of a size that nothing else takes: torch keeps what it has page-locked once.
    nbytes = gpu.pick(1 << 29, 1 << 16)
    figures.add("torch: memory page-locked by itself", gpu.seconds(lambda: gpu.pinned(nbytes)) / (nbytes / GB), "s/GB")
    for nbytes in gpu.pick([9_633_792, 38_535_168, 154_140_672, 368_000_000], [9_600]):
        arena = BareArena(gpu)
        arena.written(1, nbytes)
        seconds = gpu.seconds(functools.partial(arena.taken_in, nbytes))
        figures.add(
            f"first batch of {nbytes / 1e6:.1f} MB, taken in", seconds * 1e3, "ms", goal="< 200", met=seconds < 0.2
        )


def _locked_in_steps(gpu: Gpu, total: int, step: int) -> tuple[float, float, float]:
    """Returns the seconds that it takes to touch fresh shared memory, to page-lock it in steps, and to unlock it."""
    backing = FileBacking.create()
    backing.reserve(1)
    mapping: LockableMapping = backing.map(0, chunk_for(total))
    memory = np.frombuffer(mapping, np.uint8, total)
    address = address_of(memory)
    began = time.perf_counter()
    memory[:] = 1
    touched = time.perf_counter()
    for start in range(address, address + total, step):
        if not gpu.accelerator.register(start, step):
            raise RuntimeError(f"page-locking of {step} bytes was refused")
    locked = time.perf_counter()
    for start in range(address, address + total, step):
        gpu.accelerator.unregister(start)
    return touched - began, locked - touched, time.perf_counter() - locked


# -- 3 -----------------------------------------------------------------------------------------------------------------


def hazards(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """Two mistakes planted, which must show as wrong bytes, and the rules that keep them away."""
    rounds = gpu.pick(40, 40)
    nbytes = gpu.pick(1 << 20, 1 << 14)
    if not is_locked(gpu, BareArena(gpu).batch(1, nbytes)):
        figures.skip("hazards", "page-locking was refused")
        return

    wrong = _reused_at_once(gpu, rounds, nbytes)
    figures.add("slots written again at `del`, by the rules: wrong batches", wrong, goal="0", met=wrong == 0)
    with mock.patch.object(SlotsInFlight, "exchange", lambda in_flight, ended: ended):
        wrong = _reused_at_once(gpu, rounds, nbytes)
    figures.add(f"the same, without waiting: wrong batches of {rounds}", wrong, goal="> 0", met=wrong > 0)

    wrong = _discarded(gpu, rounds, nbytes, planted=False)
    figures.add("locked pages are kept: wrong batches", wrong, goal="0", met=wrong == 0)
    _cost_of_events(gpu, figures)
    if gpu.is_simulated:
        figures.skip("an error that page-locking leaves behind", "the simulation refuses nothing")
        figures.skip("locked pages given back", "the simulation reads addresses, not pages")
        return

    refused = not gpu.accelerator.register(mmap.PAGESIZE, mmap.PAGESIZE)
    figures.add("page-locking what is not mapped is refused", str(refused), goal="True", met=refused)
    two = int(gpu.ones((1,)).add_(1))
    figures.add("the next kernel has no error of it", str(two == 2), goal="True", met=two == 2)
    wrong = _discarded(gpu, rounds, nbytes, planted=True)
    figures.add(f"locked pages given back: wrong batches of {rounds}", wrong, goal="> 0", met=wrong > 0)


def _reused_at_once(gpu: Gpu, rounds: int, nbytes: int) -> int:
    """Returns how many batches came wrong to the device, where each was dropped while its copy had not begun."""
    arena = BareArena(gpu)
    busy = gpu.matmuls_for(0.01)
    wrong = 0
    for number in range(rounds):
        value = 2 * (number % 100)
        batch = arena.batch(value, nbytes)
        gpu.matmuls(busy)
        arrived = gpu.moved(batch)
        del batch
        arena.batch(value + 1, nbytes)
        wrong += others_than(gpu, arrived, value) > 0
        gpu.synchronize()
    return wrong


def _discarded(gpu: Gpu, rounds: int, nbytes: int, *, planted: bool) -> int:
    """Returns how many batches came wrong to the device, where the pages of a free slot were given back before each."""
    arena = BareArena(gpu)
    wrong = 0
    for number in range(rounds):
        batch = arena.batch(number, nbytes)
        arrived = gpu.moved(batch)
        wrong += others_than(gpu, arrived, number) > 0
        gpu.synchronize()
        del batch
        if planted:
            arena.discard()
        else:
            arena.region._region.discard(arena.slot)
    return wrong


def _cost_of_events(gpu: Gpu, figures: Figures) -> None:
    """Measures what it costs to learn that nobody reads a slot any more."""
    count = gpu.pick(1000, 5)
    marked, asked = [], []
    for _ in range(count):
        began = time.perf_counter()
        event = gpu.accelerator.event()
        recorded = time.perf_counter()
        if event is not None:
            event.query()
        marked.append(recorded - began)
        asked.append(time.perf_counter() - recorded)
    both = (median(marked) + median(asked)) * 1e6
    figures.add("an event behind all streams", median(marked) * 1e6, "us")
    figures.add("whether it is over", median(asked) * 1e6, "us")
    figures.add("both", both, "us", goal="< 5", met=both < 5)


# -- 4 -----------------------------------------------------------------------------------------------------------------


def many_tensors(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """One batch of 8 MB as 1 to 500 tensors: how long the main thread is busy, and when all is there."""
    nbytes = gpu.pick(8_000_000, 64_000)
    counts = gpu.pick([1, 10, 100, 500], [1, 10])
    if _driver_bindings() is None or not hasattr(_driver_bindings(), "cuMemcpyBatchAsync"):
        figures.skip("cuMemcpyBatchAsync", "cuda.bindings.driver is missing here, or knows no such call")
    for place, count in enumerate(counts):
        _many_tensors_of(gpu, figures, budget.share(len(counts) - place), nbytes // count // 8 * 8, count)


def _many_tensors_of(gpu: Gpu, figures: Figures, budget: Budget, nbytes: int, count: int) -> None:
    """Measures batches of `count` tensors, each uint8 [nbytes]."""
    memory = LockedMemory(gpu.lock)
    pinned = _pieces(gpu.pinned(count * aligned(nbytes)), nbytes, count)
    slot = _pieces(memory.empty((count * aligned(nbytes),), torch.uint8), nbytes, count)
    ordinary = [noise(nbytes, number) for number in range(count)]
    for target in (pinned, slot):
        for piece, content in zip(target, ordinary, strict=True):
            piece.copy_(content)
    targets = [gpu.empty((nbytes,)) for _ in range(count)]
    transfers = Transfers(gpu.accelerator, gpu.lock, memory)

    def by_foreach() -> list[torch.Tensor]:
        torch._foreach_copy_(targets, pinned, non_blocking=True)
        return targets

    parties: dict[str, Callable[[], list[torch.Tensor]]] = {
        "`to` each": lambda: [gpu.moved(tensor) for tensor in pinned],
        "torch._foreach_copy_": by_foreach,
        "headrace, packed": lambda: transfers.finish(transfers.begin(slot)),
        "headrace, from ordinary memory": lambda: transfers.finish(transfers.begin(ordinary)),
    }
    if not gpu.is_simulated and hasattr(_driver_bindings(), "cuMemcpyBatchAsync"):
        stream = gpu.new_stream()
        parties["cuMemcpyBatchAsync"] = lambda: _batched_copies(targets, slot, stream)

    parties = {name: send for name, send in parties.items() if _arrives(gpu, figures, name, send, ordinary)}
    calls = {name: functools.partial(_busy_and_there, gpu, send) for name, send in parties.items()}
    found = in_turn_within(calls, gpu.pick(30, 2), budget)
    words = f"{count} tensors" if count > 1 else "1 tensor"
    busy = {name: median(pair[0] for pair in pairs) for name, pairs in found.items()}
    for name, pairs in found.items():
        figures.add(f"{words}, {name}: main thread", busy[name] * 1e6, "us")
        figures.add(f"{words}, {name}: there", median(pair[1] for pair in pairs) * 1e6, "us")
    if {"`to` each", "headrace, packed"} <= busy.keys():
        ratio = busy["`to` each"] / busy["headrace, packed"]
        goal, met = (">= 20", ratio >= 20) if count == 500 else ("", None)
        figures.add(f"{words}: headrace's main thread is free sooner by", ratio, "x", goal=goal, met=met)


def _pieces(memory: torch.Tensor, nbytes: int, count: int) -> list[torch.Tensor]:
    """Returns tensors that lie side by side, uint8 [nbytes] each."""
    return [memory[start : start + nbytes] for start in range(0, count * aligned(nbytes), aligned(nbytes))]


def _arrives(
    gpu: Gpu, figures: Figures, name: str, send: Callable[[], list[torch.Tensor]], expected: list[torch.Tensor]
) -> bool:
    """Tells whether what is sent arrives as it is, which is told otherwise."""
    try:
        arrived = send()
        gpu.synchronize()
        is_right = all(torch.equal(found.cpu(), content) for found, content in zip(arrived, expected, strict=True))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        figures.skip(name, f"{type(error).__name__}: {error}")
        return False

    if not is_right:
        figures.add(f"{len(expected)} tensors, {name}: arrives as it is", "no", goal="yes", met=False)
    return is_right


def _busy_and_there(gpu: Gpu, send: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds until a call returns, and until the device has done what it asked for."""
    gpu.synchronize()
    began = time.perf_counter()
    sent = send()
    busy = time.perf_counter() - began
    gpu.synchronize()
    there = time.perf_counter() - began
    del sent
    return busy, there


def _batched_copies(targets: list[torch.Tensor], sources: list[torch.Tensor], stream: Any) -> list[torch.Tensor]:
    """Asks for all copies in one call of the driver; returns the targets. Raises RuntimeError where that refuses."""
    driver = _driver_bindings()
    order = driver.CUmemcpyAttributes()
    order.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    answer = driver.cuMemcpyBatchAsync(
        [driver.CUdeviceptr(tensor.data_ptr()) for tensor in targets],
        [driver.CUdeviceptr(tensor.data_ptr()) for tensor in sources],
        [tensor.nbytes for tensor in sources],
        len(sources),
        [order],
        [0],
        1,
        driver.CUstream(stream.cuda_stream),
    )
    if int(answer[0]) != 0:
        raise RuntimeError(f"the driver answered {answer[0]!r}")
    return targets
