"""The CUDA device that figures are measured on, in few words; and a simulated one, to try benchmarks without a GPU."""

from __future__ import annotations

import abc
import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from headrace.core.accelerator import Accelerator
from headrace.device.choice import accelerator_for, page_lock_for

Found = TypeVar("Found")
Shape = tuple[int, ...]

TRIED = 100
"""Products of matrices that are timed to see how long one takes."""


class Gpu(abc.ABC):
    """What experiments ask of a device. All that is asked of it is done later, in the order of the current stream.

    Tensors on the device come from `empty`, `moved` and loaders; whoever computes with them does so within `run`.
    """

    is_simulated: bool
    pins_in_thread: bool
    """Whether torch's loader can pin batches, which its thread does."""

    def __init__(self, accelerator: Accelerator | None, factors: list[torch.Tensor]) -> None:
        """factors: two square matrices, whose products keep the device busy."""
        lock = None if accelerator is None else page_lock_for(accelerator)
        if accelerator is None or lock is None:
            raise RuntimeError("the device has no use for page-locked memory")
        self.accelerator = accelerator
        self.device = accelerator.device
        self.lock = lock
        self._factors = factors
        self._product = torch.empty_like(factors[0])

    def pick(self, real: Found, simulated: Found) -> Found:
        """Returns a size for a real device, or a tiny one for a simulated one."""
        if self.is_simulated:
            return simulated
        return real

    def seconds(self, work: Callable[[], object]) -> float:
        """Returns how long some work takes, from its first call until the device has done it."""
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - began

    def matmuls(self, count: int) -> None:
        """Keeps the current stream busy by so many products of matrices."""
        left, right = self._factors
        for _ in range(count):
            torch.mm(left, right, out=self._product)

    def matmuls_for(self, seconds: float) -> int:
        """Returns how many products of matrices take about so long."""
        self.matmuls(TRIED)
        each = min(self.seconds(lambda: self.matmuls(TRIED)) for _ in range(3)) / TRIED
        return max(1, round(seconds / each))

    def ones(self, shape: Shape, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Returns a tensor of ones on the device."""
        tensor = self.empty(shape, dtype)
        self.run(lambda: tensor.fill_(1))
        return tensor

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Waits until all is done that was asked of the device."""

    @abc.abstractmethod
    def empty(self, shape: Shape, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Returns an uninitialised tensor on the device."""

    @abc.abstractmethod
    def pinned(self, nbytes: int) -> torch.Tensor:
        """Returns memory that torch has pinned, uint8 [nbytes]."""

    @abc.abstractmethod
    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor on the device, as training loops move it: the call does not wait."""

    @abc.abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies to a tensor of the device, from either side; both are without gaps. The call does not wait."""

    @abc.abstractmethod
    def run(self, kernels: Callable[[], Found]) -> Found:
        """Calls what computes with tensors on the device, and returns what it returns."""

    @abc.abstractmethod
    def new_stream(self) -> Any:
        """Returns a new stream."""

    @abc.abstractmethod
    def stream(self) -> Any:
        """Returns the stream that the thread computes on now."""

    @abc.abstractmethod
    def using(self, stream: Any) -> contextlib.AbstractContextManager[object]:
        """Has the thread compute on a stream."""

    @abc.abstractmethod
    def wait_for(self, stream: Any) -> None:
        """Has the current stream wait for all that was asked of another one."""

    @abc.abstractmethod
    def lend(self, tensor: torch.Tensor, stream: Any) -> None:
        """Has memory be used by a stream that it was not taken for."""

    @abc.abstractmethod
    def peak(self) -> int:
        """Returns the most bytes of device memory that were taken since `forget_peak`."""

    @abc.abstractmethod
    def forget_peak(self) -> None:
        """Gives unused device memory back, and counts anew from what is in use."""

    @abc.abstractmethod
    def recorded(self, kernels: Callable[[], object]) -> Callable[[], object]:
        """Records work as a graph. Returns what replays it."""


class CudaGpu(Gpu):
    """The current CUDA device."""

    is_simulated = False
    pins_in_thread = True

    def __init__(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        factors = [torch.randn(2048, 2048, device=device, dtype=torch.bfloat16) for _ in range(2)]
        super().__init__(accelerator_for(device), factors)
        self.matmuls(1)
        self.synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def empty(self, shape: Shape, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def run(self, kernels: Callable[[], Found]) -> Found:
        return kernels()

    def new_stream(self) -> Any:
        return torch.cuda.Stream(self.device)

    def stream(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def using(self, stream: Any) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def wait_for(self, stream: Any) -> None:
        self.stream().wait_stream(stream)

    def lend(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self.device)

    def forget_peak(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def recorded(self, kernels: Callable[[], object]) -> Callable[[], object]:
        side = self.new_stream()
        side.wait_stream(self.stream())
        with self.using(side):
            for _ in range(3):
                kernels()
        self.wait_for(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernels()
        return graph.replay


class SimulatedGpu(Gpu):
    """`headrace.testing.SimulatedAccelerator`: copies come late, computing waits for them. Not for figures."""

    is_simulated = True
    pins_in_thread = False  # the simulation serves one thread

    def __init__(self, simulated: Any) -> None:
        """simulated: the accelerator, which stands in already."""
        super().__init__(simulated, [torch.ones(16, 16), torch.ones(16, 16)])
        self._simulated = simulated

    def synchronize(self) -> None:
        self._simulated.synchronize()

    def empty(self, shape: Shape, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        memory: torch.Tensor = self._simulated.empty(int(np.prod(shape)) * dtype.itemsize)
        return memory.view(dtype).view(shape)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8).pin_memory()

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._simulated.moved(tensor)
        return found

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        as_bytes = [tensor.view(-1).view(torch.uint8) for tensor in (target, source)]
        self._simulated.copy(*as_bytes, self.stream())

    def run(self, kernels: Callable[[], Found]) -> Found:
        self.synchronize()
        return kernels()

    def new_stream(self) -> Any:
        return self._simulated.stream(new=True)

    def stream(self) -> Any:
        return self._simulated.stream()

    def using(self, stream: Any) -> contextlib.AbstractContextManager[object]:
        found: contextlib.AbstractContextManager[object] = self._simulated.using(stream)
        return found

    def wait_for(self, stream: Any) -> None:
        self.stream().wait_event(self._simulated.event(stream))

    def lend(self, tensor: torch.Tensor, stream: Any) -> None:
        self._simulated.lend(tensor, stream)

    def peak(self) -> int:
        return int(self._simulated.peak)

    def forget_peak(self) -> None:
        self.synchronize()
        self._simulated.peak = self._simulated.allocated

    def recorded(self, kernels: Callable[[], object]) -> Callable[[], object]:
        return lambda: self.run(kernels)


@contextlib.contextmanager
def opened(*, simulate: bool) -> Iterator[Gpu]:
    """Yields the device of this process, or a simulated one."""
    if not simulate:
        yield CudaGpu()
        return

    from headrace.testing import SimulatedAccelerator

    with SimulatedAccelerator(5) as simulated:
        yield SimulatedGpu(simulated)


def noise(nbytes: int, seed: int = 1) -> torch.Tensor:
    """Returns random bytes in ordinary memory, uint8 [nbytes]."""
    words = np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, -(-nbytes // 8), np.int64)
    return torch.from_numpy(words.view(np.uint8)[:nbytes])


def card() -> dict[str, Any]:
    """Returns what is known of the card and its driver without CUDA, which a process that forks must not begin."""
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    asked = ["name", "driver_version", "pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.current"]
    for name, value in zip(asked, asked_of_driver(asked), strict=False):
        found[name] = value
    for told in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        model = told.read_text().splitlines()[0]
        found.setdefault("name", model.removeprefix("Model:").strip())
    version = Path("/proc/driver/nvidia/version")
    if "driver_version" not in found and version.exists():
        found["driver_version"] = version.read_text().splitlines()[0]
    return found


def asked_of_driver(what: list[str]) -> list[str]:
    """Returns what `nvidia-smi` says of the first card; nothing where it is missing, or fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(what)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in said.splitlines()[0].split(",")] if said.strip() else []
