"""A CUDA device for code that asks torch for streams itself, and a library that decodes JPEGs on it. Both stand in for
what cannot be had on a machine without a GPU."""

from __future__ import annotations

import contextlib
import enum
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.testing import SimulatedAccelerator
from headrace.testing.accelerator import SimulatedStream
from headrace.transforms import jpeg_libraries
from tests.transforms.pictures import by_pillow

CUDA = torch.device("cuda", 0)


class _OnCuda(torch.Tensor):
    """An ordinary tensor that says that it lies on a CUDA device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA


class _Stream:
    """A stream of the simulation, under the names of torch's."""

    def __init__(self, accelerator: SimulatedAccelerator, stream: SimulatedStream) -> None:
        self.accelerator = accelerator
        self.stream = stream

    def wait_stream(self, other: _Stream) -> None:
        self.stream.wait_event(self.accelerator.event(other.stream))


class SimulatedCuda:
    """What torch asks of CUDA, by a `SimulatedAccelerator`."""

    def __init__(self, accelerator: SimulatedAccelerator, patch: pytest.MonkeyPatch) -> None:
        self.accelerator = accelerator
        copied_by_torch = torch.Tensor.to

        def to(tensor: torch.Tensor, where: Any, *arguments: Any, **options: Any) -> torch.Tensor:
            if where == CUDA:
                return tensor.clone()
            return copied_by_torch(tensor, where, *arguments, **options)

        def record_stream(tensor: torch.Tensor, stream: _Stream) -> None:
            accelerator.lend(tensor, stream.stream)

        patch.setattr(torch.Tensor, "to", to)
        patch.setattr(torch.Tensor, "record_stream", record_stream)
        patch.setattr(torch.cuda, "Stream", lambda device: _Stream(accelerator, accelerator.stream(new=True)))
        patch.setattr(torch.cuda, "current_stream", lambda device: _Stream(accelerator, accelerator.stream()))
        patch.setattr(torch.cuda, "stream", self._computing_on)

    @contextlib.contextmanager
    def _computing_on(self, stream: _Stream) -> Iterator[None]:
        with self.accelerator.using(stream.stream):
            yield

    def placed(self, step: torch.nn.Module) -> torch.nn.Module:
        """Moves a step of this package to the device."""
        step._here = torch.empty(0, dtype=torch.uint8).as_subclass(_OnCuda)
        return step


class ImageReadMode(enum.Enum):
    """As in torchvision."""

    UNCHANGED = 0
    RGB = 3


class StandIn:
    """Stands in for torchvision or torchcodec: notes how it is called, decodes by Pillow, and writes when they do.

    As they do (`decode_jpegs_cuda.cpp` of pytorch/vision), it allocates for the caller's stream, writes by a stream of
    its own that waits for nothing, and comes back when that is done. The caller's stream then waits for it.
    """

    def __init__(self, accelerator: SimulatedAccelerator, *, is_late: bool = False) -> None:
        """is_late: it comes back before all is written."""
        self.accelerator = accelerator
        self.is_late = is_late
        self.calls: list[tuple[list[torch.Tensor], Any, Any]] = []
        """Images, mode and device of each call."""
        self.raises: Exception | None = None
        self._own = accelerator.stream(new=True)

    def decode_jpeg(
        self, encoded: list[torch.Tensor], *, mode: Any = ImageReadMode.UNCHANGED, device: Any = "cpu"
    ) -> list[torch.Tensor]:
        self.calls.append((encoded, mode, device))
        if self.raises is not None:
            raise self.raises
        return self.decode(encoded, device)

    def decode(self, encoded: list[torch.Tensor], device: Any) -> list[torch.Tensor]:
        """Returns uint8 [3, height, width] for each image."""
        images = []
        for data in encoded:
            pixels = torch.from_numpy(np.ascontiguousarray(by_pillow(data.numpy().tobytes()).transpose(2, 0, 1)))
            memory = self.accelerator.empty(pixels.numel())
            self.accelerator.copy(memory, pixels.flatten(), self._own)
            images.append(memory.view(pixels.shape))

        while self._own.work and not self.is_late:
            self.accelerator.driver.work()
        self.accelerator.stream().wait_event(self.accelerator.event(self._own))
        return images

    def installed(self, name: str, patch: pytest.MonkeyPatch) -> StandIn:
        """Puts a module with the name of a library in its place; the other one is not there."""
        package = types.ModuleType(name)
        part = types.ModuleType(f"{name}.{'io' if name == 'torchvision' else 'decoders'}")
        part.decode_jpeg = self.decode_jpeg  # type: ignore[attr-defined]
        part.ImageReadMode = ImageReadMode  # type: ignore[attr-defined]
        for other in ("torchvision", "torchvision.io", "torchcodec", "torchcodec.decoders"):
            patch.setitem(sys.modules, other, None)
        patch.setitem(sys.modules, name, package)
        patch.setitem(sys.modules, part.__name__, part)
        return self


def forget_libraries() -> None:
    """Has the next test look for libraries anew, and make streams of its own."""
    jpeg_libraries._installed.cache_clear()
    jpeg_libraries._stream_of.cache_clear()
