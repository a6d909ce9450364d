"""Single steps on images that are decoded: arrays [height, width, channels] or tensors [..., channels, height, width].

An array comes back as an array, a tensor as a tensor on the same device. A tensor of four or more dimensions is a
batch, each image of which gets random numbers of its own. Anything else that `decode` takes (bytes, a path, a PIL
image) becomes an array uint8 [height, width, 3] first. uint8 means 0 to 255, floating point 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import UsageError
from headrace.core.randomness.rng import rng
from headrace.transforms.decoders import Size
from headrace.transforms.decoding import decode
from headrace.transforms.images import AREA, SHAPE, central, fitted
from headrace.transforms.pixels import Interpolation, checked_interpolation, resize, shifted
from headrace.transforms.random_crops import (
    Range,
    as_jitter,
    checked_range,
    checked_share,
    checked_size,
    draw_crop,
    draw_shift,
)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crops a random part and resizes it.

    Attributes:
        size: of the result, in pixels: a number or (height, width).
        scale: range of the crop's share of the area.
        ratio: range of the crop's width / height.
        interpolation: "bilinear", "bicubic" (both antialiased) or "nearest".

    Raises:
        UsageError: arguments that cannot be.

    Examples:
        >>> crop = headrace.transforms.RandomResizedCrop(8)
        >>> crop(np.zeros((30, 40, 3), np.uint8)).shape
        (8, 8, 3)
    """

    random: ClassVar[bool] = True

    size: int | Size
    scale: Range = AREA
    ratio: Range = SHAPE
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size))
        object.__setattr__(self, "scale", checked_range("scale", self.scale, 0, 1))
        object.__setattr__(self, "ratio", checked_range("ratio", self.ratio, 0))
        checked_interpolation(self.interpolation)

    def __call__(self, value: object) -> Any:
        """Returns an image or a batch with height and width `size`, in memory of its own."""
        generator = rng()
        size = checked_size(self.size)

        def apply(image: Tensor) -> Tensor:
            box = draw_crop(generator, (image.shape[-2], image.shape[-1]), self.scale, self.ratio)
            part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
            return resize(part[None], size, self.interpolation)[0]

        return _each(value, apply)


@dataclass(frozen=True)
class Resize:
    """Resizes an image or a batch.

    Attributes:
        size: (height, width) in pixels, or one number for the shorter side (the longer is rounded down).
        interpolation: "bilinear", "bicubic" (both antialiased) or "nearest".

    Raises:
        UsageError: arguments that cannot be.

    Examples:
        >>> headrace.transforms.Resize(15)(np.zeros((30, 40, 3), np.uint8)).shape
        (15, 20, 3)
    """

    random: ClassVar[bool] = False

    size: int | Size
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        checked_size(self.size)
        checked_interpolation(self.interpolation)

    def __call__(self, value: object) -> Any:
        """Returns an image or a batch of the new size, in memory of its own."""

        def all_of_them(images: Tensor) -> Tensor:
            size = (images.shape[-2], images.shape[-1])
            if isinstance(self.size, int):
                target = fitted(size, self.size)
            else:
                target = checked_size(self.size)

            return resize(images, target, self.interpolation)

        return _batch(value, all_of_them)


@dataclass(frozen=True)
class CenterCrop:
    """Crops the middle. What an image lacks is filled with zeros all round.

    Attributes:
        size: of the result, in pixels: a number or (height, width).

    Raises:
        UsageError: a size that cannot be.

    Examples:
        >>> headrace.transforms.CenterCrop(8)(np.zeros((30, 40, 3), np.uint8)).shape
        (8, 8, 3)
    """

    random: ClassVar[bool] = False

    size: int | Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size))

    def __call__(self, value: object) -> Any:
        """Returns the middle of an image or a batch, in memory of its own."""
        height, width = checked_size(self.size)

        def all_of_them(images: Tensor) -> Tensor:
            # `pad` wants (left, right, top, bottom). An odd number of pixels has one more on the right and below.
            down = max(0, height - images.shape[-2])
            across = max(0, width - images.shape[-1])
            margins = (across // 2, across - across // 2, down // 2, down - down // 2)
            if any(margins):
                images = torch.nn.functional.pad(images, margins)

            box = central((images.shape[-2], images.shape[-1]), (height, width))
            return images[..., box.top : box.top + height, box.left : box.left + width]

        return _batch(value, all_of_them)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors left to right at random.

    Attributes:
        p: probability that an image is mirrored.

    Raises:
        UsageError: a probability that cannot be.

    Examples:
        >>> headrace.transforms.RandomHorizontalFlip(p=1.0)(torch.tensor([[[1, 2, 3]]], dtype=torch.uint8))
        tensor([[[3, 2, 1]]], dtype=torch.uint8)
    """

    random: ClassVar[bool] = True

    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", checked_share("p", self.p, type(self).__name__))

    def __call__(self, value: object) -> Any:
        """Returns an image or a batch, mirrored or not, in memory of its own."""
        generator = rng()

        def apply(image: Tensor) -> Tensor:
            if generator.random() < self.p:
                return image.flip(-1)
            return image

        return _each(value, apply)


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Formulae and ranges as torchvision documents them for its `ColorJitter`; numbers are rounded once, at the end.

    Attributes:
        brightness: s draws a factor from max(0, 1 - s) to 1 + s; (low, high) from that range.
        contrast: likewise.
        saturation: likewise.
        hue: h, up to 0.5, draws a shift of -h to h turns of the colour circle; (low, high) from that range.

    Raises:
        UsageError: ranges that cannot be.

    Examples:
        >>> jitter = headrace.transforms.ColorJitter(brightness=0.4, hue=0.1)
        >>> jitter(np.zeros((30, 40, 3), np.uint8)).shape
        (30, 40, 3)
    """

    random: ClassVar[bool] = True

    brightness: float | Range = 0.0
    contrast: float | Range = 0.0
    saturation: float | Range = 0.0
    hue: float | Range = 0.0

    def __post_init__(self) -> None:
        as_jitter((self.brightness, self.contrast, self.saturation, self.hue))

    def __call__(self, value: object) -> Any:
        """Returns a gray or RGB image, or a batch, with other colours, in memory of its own."""
        generator = rng()
        jitter = as_jitter((self.brightness, self.contrast, self.saturation, self.hue))

        def apply(image: Tensor) -> Tensor:
            if len(image) not in (1, 3):
                raise UsageError.about("cannot jitter", found=f"{len(image)} channels", expected="1 or 3")
            return shifted(image, draw_shift(generator, jitter))

        return _each(value, apply)


def _each(value: object, change: Callable[[Tensor], Tensor]) -> Any:
    """Applies `change` to each image [channels, height, width]."""
    return _batch(value, lambda images: torch.stack([change(image) for image in images]))


def _batch(value: object, change: Callable[[Tensor], Tensor]) -> Any:
    """Applies `change` to the images as one tensor [batch, channels, height, width]; see the module for `value`."""
    if isinstance(value, Tensor) and value.ndim >= 3:
        _refuse_other_layout(value.shape, value.shape[-3], value.shape[-1], "a tensor [..., channels, height, width]")
        images = _checked(value)
        changed = change(images.reshape(-1, *images.shape[-3:]))
        changed = changed.reshape(*images.shape[:-3], *changed.shape[-3:])
        # The caller may write to the result; a step that changed nothing hands back a view of what it was given.
        if changed.untyped_storage().data_ptr() == _start(value):
            return changed.clone()
        return changed.contiguous()

    if isinstance(value, np.ndarray) and value.ndim in (2, 3):
        array = value
        if array.ndim == 3:
            _refuse_other_layout(array.shape, array.shape[2], array.shape[0], "an array [height, width, channels]")
    else:
        array = decode(value)

    if array.ndim == 2:
        pixels = array[:, :, None]
    else:
        pixels = array

    # A copy: torch has no tensors that cannot be written, and arrays of a dataset are often mapped read-only.
    tensor = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    changed = change(_checked(tensor)[None])[0].permute(1, 2, 0)
    result = np.ascontiguousarray(changed.numpy())
    if array.ndim == 2:
        return result[:, :, 0]
    return result


def _refuse_other_layout(shape: Sequence[int], channels: int, other: int, expected: str) -> None:
    """Raises `UsageError` for an image whose channels stand where the other kind has them, as after a cache."""
    if channels > 4 and other in (1, 3, 4):
        fix = "arrays have their channels last, tensors before height and width: torch.from_numpy(x), or x.numpy()"
        raise UsageError.about(
            "the channels of an image stand elsewhere", found=f"{list(shape)}", expected=expected, fix=fix
        )


def _start(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _checked(images: Tensor) -> Tensor:
    if (images.dtype != torch.uint8 and not images.is_floating_point()) or 0 in images.shape[-3:]:
        expected = "uint8 (0 to 255) or floating point (0 to 1), not empty"
        raise UsageError.about("no images", found=f"{images.dtype} {list(images.shape)}", expected=expected)
    return images
