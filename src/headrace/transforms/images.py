"""Whole pipelines for vision: from encoded bytes, a path, a PIL image or an array to uint8 [3, height, width]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.errors import UsageError
from headrace.core.randomness.rng import rng
from headrace.transforms.decoders import Pixels, Size
from headrace.transforms.decoding import REDUCTIONS, EncodedImage, open_source
from headrace.transforms.pixels import Interpolation, checked_interpolation, resize, shifted
from headrace.transforms.random_crops import (
    Box,
    Jitter,
    Range,
    as_jitter,
    checked_range,
    checked_share,
    checked_size,
    draw_crop,
    draw_shift,
)

AREA, SHAPE = (0.08, 1.0), (3 / 4, 4 / 3)
"""The usual range of a random crop's share of the area, and of its width / height."""

LONGEST = 8
"""Of an image more than so many times as long as it is wide, only so much of the middle is resized for evaluation."""


class IntoArray(ABC):
    """What pipelines share: the form of the result, and that it can be written into memory that is there already."""

    takes_encoded: ClassVar[bool] = True

    size: int | Size

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the result: (3, height, width)."""
        return 3, *checked_size(self.size)

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """Type of the result's numbers: uint8."""
        return np.dtype(np.uint8)

    def __call__(self, value: object) -> Pixels:
        """Returns what `into` writes: uint8 [3, height, width], contiguous; the memory is the caller's."""
        out = np.empty(self.shape, np.uint8)
        self.into(value, out)
        return out

    @abstractmethod
    def into(self, value: object, out: NDArray[Any]) -> None:
        """Writes what `__call__` returns to `out`, uint8 [3, height, width], writable, of any strides from 0 up."""


@dataclass(frozen=True)
class TrainImages(IntoArray):
    """Decodes, crops at random, resizes, mirrors and jitters an image: uint8 [3, height, width], RGB.

    Takes what `decode` takes. Where to crop is drawn from the header's size, before anything is decoded. A JPEG is
    decoded no further than to the crop's lower edge, so damage below it is not noticed; if the crop has at least twice
    the target's height and width, at 1/2, 1/4 or 1/8 of its size, with the crop's edges moved to multiples of that (for
    other forms of images too). So hand it bytes or a path rather than a decoded image.

    Numbers come from `headrace.rng()` alone: under `DataLoader(seed=)` the same pixels for any backend and workers. May
    be pickled, and called by many threads at once. Calls raise as `decode` does.

    Attributes:
        size: of the result, in pixels: a number or (height, width).
        scale: range of the crop's share of the area.
        ratio: range of the crop's width / height.
        flip: probability that the image is mirrored left to right.
        jitter: up to four of (brightness, contrast, saturation, hue), as in `ColorJitter`; None for none.
        interpolation: "bilinear", "bicubic" (both antialiased) or "nearest".

    Raises:
        UsageError: arguments that cannot be.

    Examples:
        >>> transform = headrace.transforms.TrainImages(32)
        >>> transform(np.zeros((60, 80, 3), np.uint8)).shape
        (3, 32, 32)
    """

    random: ClassVar[bool] = True

    size: int | Size = 224
    scale: Range = AREA
    ratio: Range = SHAPE
    flip: float = 0.5
    jitter: tuple[float | Range, ...] | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size))
        object.__setattr__(self, "scale", checked_range("scale", self.scale, 0, 1))
        object.__setattr__(self, "ratio", checked_range("ratio", self.ratio, 0))
        object.__setattr__(self, "flip", checked_share("flip", self.flip, type(self).__name__))
        checked_interpolation(self.interpolation)
        if self.jitter is None:
            jitter = None
        else:
            jitter = as_jitter(self.jitter)

        # Worked out once, not for each image; no field, so that equality and `repr` are of the arguments.
        object.__setattr__(self, "_jitter", jitter)

    def into(self, value: object, out: NDArray[Any]) -> None:
        """Writes what `__call__` returns to `out`, uint8 [3, height, width], writable, of any strides from 0 up."""
        check_out(out, self.shape)
        generator = rng()
        # All that is random is drawn in one order, before anything depends on how the image is decoded.
        source = open_source(value, None)
        target = out.shape[1], out.shape[2]
        box = draw_crop(generator, source.size, self.scale, self.ratio)
        mirrored = bool(generator.random() < self.flip)
        divisor = spare(box, target)
        if divisor > 1:
            box = on_grid(box, divisor, source.size)

        part = cropped(source, box, divisor)
        view = resize(part, target, self.interpolation)[0].permute(1, 2, 0).numpy()
        if mirrored:
            shown = view[:, ::-1]
        else:
            shown = view

        np.copyto(out, shown.transpose(2, 0, 1))
        jitter: Jitter | None = getattr(self, "_jitter", None)
        if jitter is not None:
            written = torch.from_numpy(out)
            written.copy_(shifted(written, draw_shift(generator, jitter)))


@dataclass(frozen=True)
class EvalImages(IntoArray):
    """Decodes, resizes and crops the middle of an image: uint8 [3, height, width], RGB; nothing is drawn at random.

    Takes what `decode` takes. A JPEG of four times the size that is needed, or more, is decoded at 1/2, 1/4 or 1/8, so
    that twice that size is left to shrink. May be pickled, and called by many threads at once. Calls raise as `decode`
    does.

    Attributes:
        size: of the result, in pixels: a number or (height, width).
        resize: the shorter side before the crop; None: 8/7 of `size`, so 256 for 224. The crop has to fit.
        interpolation: "bilinear", "bicubic" (both antialiased) or "nearest".

    Raises:
        UsageError: arguments that cannot be, such as `resize` below either side of `size`.

    Examples:
        >>> transform = headrace.transforms.EvalImages(32)
        >>> transform(np.zeros((60, 80, 3), np.uint8)).shape
        (3, 32, 32)
    """

    random: ClassVar[bool] = False

    size: int | Size = 224
    resize: int | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        size = checked_size(self.size)
        if self.resize is None:
            shorter = round(max(size) * 8 / 7)
        else:
            shorter = self.resize

        if shorter < max(size):
            expected = f"{max(size)} pixels or more"
            raise UsageError.about("resize leaves less than the crop", found=self.resize, expected=expected)

        checked_interpolation(self.interpolation)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "resize", shorter)

    def into(self, value: object, out: NDArray[Any]) -> None:
        """Writes what `__call__` returns to `out`, uint8 [3, height, width], writable, of any strides from 0 up."""
        check_out(out, self.shape)
        source = open_source(value, None)
        # Only the middle square is left in the end: of a panorama, nearly all would be decoded and resized in vain.
        height, width = source.size
        longest = LONGEST * min(height, width)
        part = central(source.size, (min(height, longest), min(width, longest)))
        whole = fitted((part.height, part.width), self.resize or 1)
        if source.is_jpeg:
            divisor = spare(part, (2 * whole[0], 2 * whole[1]))
        else:
            divisor = 1

        image = resize(cropped(source, part, divisor), whole, self.interpolation)[0]
        box = central(whole, checked_size(self.size))
        rows = slice(box.top, box.top + box.height)
        columns = slice(box.left, box.left + box.width)
        torch.from_numpy(out).copy_(image[:, rows, columns])


def fitted(size: Size, shorter: int) -> Size:
    """Returns `size` scaled so that its shorter side is `shorter`; the longer is rounded down, as in torchvision."""
    height, width = size
    if height <= width:
        return shorter, int(shorter * width / height)
    return int(shorter * height / width), shorter


def central(size: Size, crop: Size) -> Box:
    """Returns the box of `crop` in the middle of `size`, rounded as in torchvision."""
    return Box(round((size[0] - crop[0]) / 2), round((size[1] - crop[1]) / 2), *crop)


def spare(box: Box, target: Size) -> int:
    """Returns the largest divisor (8, 4, 2 or 1) by which `box` shrinks to no less than `target`."""
    for divisor in REDUCTIONS:
        if box.height >= divisor * target[0] and box.width >= divisor * target[1]:
            return divisor

    return 1


def on_grid(box: Box, divisor: int, size: Size) -> Box:
    """Returns `box` with its edges at the nearest multiples of `divisor` that lie in the image.

    So a crop lies between the pixels of the reduced image, and is the same whether that or the whole is decoded. An
    edge moves by no more than half a pixel of the reduced image, by less than one where the image ends.
    """
    top = _nearest(box.top, divisor, size[0])
    bottom = _nearest(box.top + box.height, divisor, size[0])
    left = _nearest(box.left, divisor, size[1])
    right = _nearest(box.left + box.width, divisor, size[1])
    return Box(top, left, bottom - top, right - left)


def _nearest(edge: int, divisor: int, end: int) -> int:
    return min(edge + divisor // 2, end) // divisor * divisor


def _reduced(edge: int, divisor: int) -> int:
    """Returns the pixel of a reduced image that is nearest to an edge in the whole one."""
    return (edge + divisor // 2) // divisor


def cropped(source: EncodedImage, box: Box, divisor: int) -> Tensor:
    """Decodes, a JPEG at 1/`divisor` of its size and down to the box, and returns `box` (in pixels of the whole image)
    to the nearest pixel that there is, as uint8 [1, 3, height, width] with channels last, in memory that may be lent.
    """
    size = source.size
    if source.is_jpeg:
        reduction = divisor
    else:
        reduction = 1

    image = source.lent_pixels(reduction, box.top + box.height)
    if image.shape[1] != size[1]:
        # Decoded at a part of its size: the box in pixels of that.
        top = _reduced(box.top, divisor)
        bottom = _reduced(box.top + box.height, divisor)
        left = _reduced(box.left, divisor)
        right = _reduced(box.left + box.width, divisor)
        box = Box(top, left, bottom - top, right - left)

    # torch warns of arrays that cannot be written, and its kernels are slow on rows with gaps.
    part = image[box.top : box.top + box.height, box.left : box.left + box.width]
    if not (part.flags.c_contiguous and part.flags.writeable):
        part = part.copy()
    return torch.from_numpy(part)[None].permute(0, 3, 1, 2)


def check_out(out: object, shape: tuple[int, ...]) -> None:
    """Raises `UsageError` unless `out` is a writable array uint8 of this shape."""
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != np.uint8 or not out.flags.writeable:
        if isinstance(out, np.ndarray):
            found = f"{out.dtype} {list(out.shape)}"
        else:
            found = type(out).__name__

        expected = f"a writable array uint8 {list(shape)}"
        raise UsageError.about("cannot write an image there", found=found, expected=expected)
