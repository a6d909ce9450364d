"""From uint8 to floating point, once per batch, on the device that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.errors import UsageError
from headrace.core.process.reused_memory import ReusedMemory

PIECE = 1 << 17
"""Numbers that are normalized at a time on the CPU: they stay in the cache from one step to the next."""

WIDE = (torch.float32, torch.float64)
"""Types in which numbers are calculated."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images, RGB, of 1, as PyTorch's model zoo documents them."""


class Normalize:
    """Turns uint8 [batch, channels, height, width], 0 to 255, into (x / 255 - mean) / std, in floating point.

    Worth doing once per batch and on the accelerator: the batch then travels as bytes, a quarter of float32, and this
    is one multiplication and one addition per number, in one kernel. `[channels, height, width]` and NumPy arrays do
    too; arrays come back as arrays. The memory is the caller's; channels last stay last. On the CPU, memory of results
    that are gone is used again: up to two of them stay with this object.

    May be pickled and called by many threads at once. Calls raise `UsageError` for other input than uint8.

    Args:
        mean: one number for each channel, of 1; ImageNet's by default.
        std: likewise.
        dtype: of the result. Numbers are calculated in float32 where that is no wider.

    Raises:
        UsageError: numbers that do not fit each other.

    Examples:
        >>> normalize = headrace.transforms.Normalize(mean=[0.5], std=[0.5])
        >>> normalize(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """

    random: ClassVar[bool] = False

    def __init__(
        self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD, dtype: torch.dtype = torch.float32
    ) -> None:
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.dtype = dtype
        if not self.mean or len(self.mean) != len(self.std) or not min(self.std) > 0 or not dtype.is_floating_point:
            expected = "as many means as standard deviations, these above 0, and a floating-point type"
            raise UsageError.about("cannot normalize so", found=repr(self), expected=expected)
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._memory = ReusedMemory()

    def __call__(self, images: object) -> Any:
        """Returns the images in `dtype`, on their device."""
        if isinstance(images, np.ndarray):
            return self._tensor(_tensor_of(images)).numpy()
        if not isinstance(images, Tensor):
            found = type(images).__name__
            raise UsageError.about("cannot normalize", found=found, expected="a tensor or an array, uint8")

        return self._tensor(images)

    def _tensor(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or images.ndim < 3 or images.shape[-3] != len(self.mean):
            found = f"{images.dtype} {list(images.shape)}"
            expected = f"uint8 [batch, {len(self.mean)}, height, width]"
            fix = "leave images as uint8 up to here: no ToDtype, no division by 255"
            raise UsageError.about("cannot normalize", found=found, expected=expected, fix=fix)

        scale, offset = self._constants(images.device)
        if images.device.type == "cpu":
            return self._on_cpu(images, scale, offset)

        out = torch.empty_like(images, dtype=self.dtype)
        return torch.addcmul(offset, images, scale, out=out)

    def _on_cpu(self, images: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        """The same in pieces that stay in the cache, in memory that is used again, with the bits of three passes.

        By NumPy, in the calling thread: where workers keep the cores busy, torch's threads wait for each other, piece
        by piece. `addcmul` would convert into a copy, and round otherwise.
        """
        rows = _as_rows(images)
        if rows is None:
            return images.to(scale.dtype).mul_(scale).add_(offset).to(self.dtype)

        made = self._memory.empty(tuple(rows.shape), self.dtype)
        channels_last = not images.is_contiguous()
        if channels_last:
            width = images.shape[-1]
            factors = np.tile(scale.numpy().ravel(), width)
            terms = np.tile(offset.numpy().ravel(), width)
        else:
            factors = scale.numpy()[:, 0]
            terms = offset.numpy()[:, 0]

        self._fill(made, rows, factors, terms)
        if channels_last:
            batch, channels, height, width = images.shape
            return made.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return made.view(images.shape)

    def _fill(self, made: Tensor, rows: Tensor, factors: NDArray[Any], terms: NDArray[Any]) -> None:
        """Writes rows * factors + terms to `made`; both are [images, rows, numbers]."""
        count = max(PIECE // rows[0].numel(), 1)
        is_narrow = self.dtype not in WIDE
        scratch = np.empty(0, factors.dtype)
        if is_narrow:
            scratch = np.empty((count, *rows.shape[1:]), factors.dtype)

        for source, target in zip(rows.split(count), made.split(count), strict=True):
            if is_narrow:
                values = scratch[: len(source)]
            else:
                values = target.numpy()

            np.copyto(values, source.numpy())
            np.multiply(values, factors, out=values)
            np.add(values, terms, out=values)
            if is_narrow:
                target.copy_(torch.from_numpy(values))

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """x * scale + offset, each [channels, 1, 1]."""
        if device not in self._on:
            if self.dtype == torch.float64:
                wide = torch.float64
            else:
                wide = torch.float32

            # (x / 255 - mean) / std = x / (255 std) - mean / std, in float64 before it is rounded once.
            mean = torch.tensor(self.mean, dtype=torch.float64)[:, None, None]
            std = torch.tensor(self.std, dtype=torch.float64)[:, None, None]
            scale = 1 / (255 * std)
            offset = -mean / std
            self._on[device] = (scale.to(device, wide), offset.to(device, wide))

        return self._on[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on": {}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Normalize):
            return NotImplemented
        return (self.mean, self.std, self.dtype) == (other.mean, other.std, other.dtype)

    def __hash__(self) -> int:
        return hash((self.mean, self.std, self.dtype))

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std}, dtype={self.dtype})"


def _as_rows(images: Tensor) -> Tensor | None:
    """Returns the same memory as [images, channels, height x width], or with channels last as [images, height, width x
    channels]; None for images that lie otherwise, and if there are none."""
    if images.numel() == 0:
        return None
    if images.is_contiguous():
        return images.view(-1, images.shape[-3], images.shape[-2] * images.shape[-1])
    if images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1).flatten(2)
    return None


def _tensor_of(array: NDArray[Any]) -> Tensor:
    """Returns a tensor over the memory of an array, or of a copy where torch cannot take it as it is."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)
