"""What is done to pixels: resizing, jitter. On tensors [..., channels, height, width], of any device.

uint8 means 0 to 255, floating point 0 to 1. Results do not depend on the number of threads: sums are of whole numbers,
and all else is done pixel by pixel without fused operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from headrace.core.errors import UsageError
from headrace.transforms.random_crops import Shift

Interpolation = Literal["bilinear", "bicubic", "nearest"]
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")

GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luma: ITU-R BT.601-7, section 2.5.1."""


def resize(images: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """Resizes [batch, channels, height, width] to `size`, antialiased when it shrinks (except "nearest").

    Torch's kernel for uint8 is that of Pillow, vectorized: the same filters to within one level of 255, in less than
    half the time; OpenCV's has no antialiasing but the one of INTER_AREA, which takes longer. It is quickest where the
    channels of a pixel lie side by side, without gaps between rows. Returns `images` itself if they have that size.
    """
    if tuple(images.shape[-2:]) == size:
        return images
    # A crop of an image with channels last has gaps between its rows. In a batch of one, `contiguous` may leave a
    # stride that hides where the channels lie; the view sets all strides anew.
    if images.stride(1) == 1:
        rows = images.permute(0, 2, 3, 1).contiguous()
        images = rows.view(rows.shape).permute(0, 3, 1, 2)

    if interpolation == "nearest":
        return interpolate(images, size=size, mode="nearest-exact")
    return interpolate(images, size=size, mode=interpolation, antialias=True)


def resized_in_float(images: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Resizes images uint8 [channels, height, width] of any sizes to one tensor uint8 [images, channels, *size].

    Antialiased when it shrinks, bilinear, in float32, rounded: torch has no such kernel for uint8 on other devices than
    the CPU.
    """
    out = torch.empty((len(images), len(images[0]), *size), dtype=torch.uint8, device=images[0].device)
    for image, target in zip(images, out, strict=True):
        if tuple(image.shape[-2:]) == size:
            target.copy_(image)
            continue

        values = interpolate(image[None].to(torch.float32), size=size, mode="bilinear", antialias=True)
        target.copy_(values[0].round_())

    return out


def checked_interpolation(value: str) -> None:
    """Raises `UsageError` for an interpolation that there is not."""
    if value not in INTERPOLATIONS:
        expected = ", ".join(INTERPOLATIONS)
        raise UsageError.about("an unknown interpolation", found=repr(value), expected=expected)


def shifted(image: Tensor, shift: Shift) -> Tensor:
    """Returns [channels, height, width] with brightness, contrast, saturation and hue changed as `shift` says.

    Formulae as torchvision documents them for `adjust_brightness`, `adjust_contrast`, `adjust_saturation` and
    `adjust_hue`; unlike there, numbers are rounded once, at the end, instead of after each. Gray images [1, ...] keep
    their (missing) colour. Memory is the caller's.
    """
    if not shift.order:
        return image.clone()

    if image.is_floating_point():
        highest = 1.0
    else:
        highest = 255.0

    if image.dtype == torch.float64:
        dtype = torch.float64
    else:
        dtype = torch.float32

    values = image.to(dtype, copy=True)
    for step in shift.order:
        if step == 0:
            values.mul_(shift.brightness).clamp_(0, highest)
        elif step == 1:
            gray_level = (1 - shift.contrast) * _mean(values, highest)
            values.mul_(shift.contrast).add_(gray_level).clamp_(0, highest)
        elif len(values) == 3 and step == 2:
            gray = luma(values).mul_(1 - shift.saturation)
            values.mul_(shift.saturation).add_(gray).clamp_(0, highest)
        elif len(values) == 3:
            values = _turned(values, shift.hue)

    if image.is_floating_point():
        return values.to(image.dtype)
    return values.round_().to(torch.uint8)


def luma(values: Tensor) -> Tensor:
    """Returns the luma [1, height, width] of RGB [3, height, width]; gray as it is, copied. Floating point."""
    if len(values) == 1:
        return values.clone()
    red, green, blue = GRAY
    return (values[0] * red).add_(values[1] * green).add_(values[2] * blue)[None]


def _mean(values: Tensor, highest: float) -> float:
    """The mean luma, rounded to a level of 255 as Pillow's ImageEnhance.Contrast has it."""
    # A sum of whole numbers is the same in any order, and so for any number of threads; one of floats is not.
    levels = (luma(values) * (255 / highest)).round_().to(torch.int64)
    return round(int(levels.sum()) / levels.numel()) * (highest / 255)


def _turned(values: Tensor, turns: float) -> Tensor:
    """Turns the hue of [3, height, width] by `turns` (1: all the way round), keeping saturation and value.

    Hexcone model of A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978. With the hue H in sixths of a turn, red
    is V - C + C clamp(|H - 3| - 1, 0, 1), green has 2 - |H - 2| and blue 2 - |H - 4| in its place.
    """
    red, green, blue = values
    highest = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    chroma = highest - lowest
    # Where there is no chroma the hue does not matter; the 1 keeps it from being a division by 0.
    per_chroma = (chroma + (chroma == 0)).reciprocal_()
    sixths = (red - green).mul_(per_chroma).add_(4)
    sixths = torch.where(highest == green, (blue - red).mul_(per_chroma).add_(2), sixths)
    sixths = torch.where(highest == red, (green - blue).mul_(per_chroma), sixths)
    sixths.add_(6 * turns).remainder_(6)
    result = torch.empty_like(values)
    for channel, (peak, sign, height) in enumerate(((3, 1, -1), (2, -1, 2), (4, -1, 2))):
        ramp = torch.sub(sixths, peak, out=result[channel]).abs_().mul_(sign).add_(height).clamp_(0, 1)
        ramp.mul_(chroma).add_(lowest)

    return result
