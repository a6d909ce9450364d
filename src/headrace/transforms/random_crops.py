"""Random numbers of image transforms: where to crop, and how far to shift colours.

All come from the generator that is passed in, in a fixed order, so that a stream gives the same crops for ever.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from headrace.core.errors import UsageError

Range = tuple[float, float]

ATTEMPTS = 10
"""Crops that are drawn before the central one is taken, as in torchvision."""


class Box(NamedTuple):
    """A part of an image, in pixels: rows from `top` up to, not including, `top + height`, columns likewise."""

    top: int
    left: int
    height: int
    width: int


class Jitter(NamedTuple):
    """Ranges of the factors of brightness, contrast and saturation (1: unchanged), and of the hue's shift in turns."""

    brightness: Range
    contrast: Range
    saturation: Range
    hue: Range


UNCHANGED = Jitter((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))

LIMITS = Jitter((0.0, math.inf), (0.0, math.inf), (0.0, math.inf), (-0.5, 0.5))
"""What ranges must lie in. Half a turn of hue in either direction reaches every colour."""


class Shift(NamedTuple):
    """One draw from a `Jitter`. `order`: the places in the tuple of what is applied, in that order."""

    order: tuple[int, ...]
    brightness: float
    contrast: float
    saturation: float
    hue: float


def draw_crop(generator: np.random.Generator, size: tuple[int, int], scale: Range, ratio: Range) -> Box:
    """Draws a crop of an image of `size` (height, width): its share of the area from `scale`, width / height from
    `ratio`, uniform in its logarithm, then its place.

    After 10 crops that do not fit it is the largest central one within `ratio`. Source: Szegedy et al., "Going deeper
    with convolutions", CVPR 2015, section 6, in the form that torchvision documents as `RandomResizedCrop`.
    """
    height, width = size
    lowest = math.log(ratio[0])
    highest = math.log(ratio[1])
    for _ in range(ATTEMPTS):
        # One call for four numbers: a call costs more than the numbers.
        share, shape, down, right = generator.random(4).tolist()
        area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
        aspect = math.exp(lowest + (highest - lowest) * shape)
        crop_width = round(math.sqrt(area * aspect))
        crop_height = round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(down * (height - crop_height + 1))
            left = int(right * (width - crop_width + 1))
            return Box(top, left, crop_height, crop_width)

    if width / height < ratio[0]:
        crop_height = min(height, round(width / ratio[0]))
        crop_width = width
    elif width / height > ratio[1]:
        crop_height = height
        crop_width = min(width, round(height * ratio[1]))
    else:
        crop_height = height
        crop_width = width

    return Box((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width)


def draw_shift(generator: np.random.Generator, jitter: Jitter) -> Shift:
    """Draws the factors and, as torchvision does, the order in which they are applied."""
    order = []
    for step in generator.permutation(4).tolist():
        if jitter[step] != UNCHANGED[step]:
            order.append(step)

    # All four are drawn, needed or not: what comes after them in the stream is the same for any jitter.
    factors = []
    for (low, high), share in zip(jitter, generator.random(4).tolist(), strict=True):
        factors.append(low + (high - low) * share)

    return Shift(tuple(order), *factors)


def as_jitter(strengths: tuple[float | Range, ...]) -> Jitter:
    """Returns the ranges for (brightness, contrast, saturation, hue); a number s means 1 - s to 1 + s, or -s to s turns
    of hue; fewer than four leave the rest unchanged. Raises `UsageError` for factors below 0 and a hue beyond 0.5."""
    if len(strengths) > 4:
        raise _bad_jitter(strengths)

    ranges: list[Range] = list(UNCHANGED)
    for position, strength in enumerate(strengths):
        unchanged, _ = UNCHANGED[position]
        lowest, highest = LIMITS[position]
        if not isinstance(strength, (int, float)):
            low, high = strength
        elif strength < 0:
            raise _bad_jitter(strengths)
        else:
            # A strength above 1 reaches down to black, not to negative light.
            low = max(lowest, unchanged - strength)
            high = unchanged + strength

        if not lowest <= low <= high <= highest:
            raise _bad_jitter(strengths)
        ranges[position] = (float(low), float(high))

    return Jitter(*ranges)


def _bad_jitter(strengths: object) -> UsageError:
    expected = (
        "up to four of (brightness, contrast, saturation, hue): numbers from 0, or ranges (low, high); hue to 0.5"
    )
    return UsageError.about("a jitter that cannot be", found=strengths, expected=expected)


def checked_range(name: str, value: Range, lowest: float, highest: float = math.inf) -> Range:
    """Returns a range (low, high) as floats; raises `UsageError` unless `lowest` < low <= high <= `highest`."""
    low = float(value[0])
    high = float(value[1])
    if not lowest < low <= high <= highest:
        expected = f"(low, high) with {lowest} < low <= high"
        if highest != math.inf:
            expected += f" <= {highest}"

        raise UsageError.about(f"{name} is no such range", found=value, expected=expected)

    return low, high


def checked_share(name: str, value: Any, step: str) -> float:
    """Returns a probability, an argument of a step; raises `UsageError` unless it lies in 0 to 1."""
    is_number = isinstance(value, Real)
    if not is_number or not 0 <= value <= 1:
        raise UsageError.about(
            f"{name} is no probability",
            place=f"{step}({name}=)",
            found=repr(value),
            expected="a number from 0 to 1",
            fix="give a share, such as 0.5 for every other sample",
        )
    return float(value)


def checked_size(value: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) for one number or two; raises `UsageError` unless both are 1 or more."""
    if isinstance(value, int):
        pair = (value, value)
    else:
        pair = value

    whole = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(side) is int for side in pair)
    if not whole or min(pair) < 1:
        raise UsageError.about("no size of an image", found=value, expected="pixels, or (height, width), from 1")
    return pair[0], pair[1]
