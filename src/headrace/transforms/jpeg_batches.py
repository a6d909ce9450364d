"""The JPEGs of a whole batch to pixels, on the device that the batch goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import UsageError, wrong_argument
from headrace.transforms.decoders import Size
from headrace.transforms.decoding import decode
from headrace.transforms.entries import entry_of, with_entry
from headrace.transforms.jpeg_libraries import (
    decode_on_device,
    is_for_library,
    library_for,
    say_on_cpu,
    without_exif,
)
from headrace.transforms.pixels import resized_in_float
from headrace.transforms.random_crops import checked_size

PLACE = "headrace.transforms.DecodeJpegs"


class DecodeJpegs(torch.nn.Module):
    """Decodes the JPEGs of a batch where the module is: for `DataLoader(device="cuda", device_transform=)`.

    The batch has the encoded images as a list of `bytes`, as default collation makes it of samples that have bytes, as
    the `Blobs` of stored data (`headrace.open(..., decode=False)`), or as a list of tensors uint8 [bytes]. In its place
    comes RGB, uint8 [batch, 3, height, width], on the module's device; the rest of the batch stays as it is. The memory
    is the caller's. Give bytes: they stay on this machine, where decoding begins, while a tensor goes to the device and
    back first.

    On CUDA, one call of torchcodec (0.16 or later) or torchvision decodes the whole batch. Where neither can be
    imported and on other devices, `headrace.transforms.decode` decodes on the CPU, one image after the other, in the
    process of the loop; so it does for images that nvJPEG does not list (CMYK, PNG) and for a batch that the library
    refuses. The log says so once.

    The two ways do not give the same pixels: where colours are stored at half size (4:2:0, Pillow's default), nvJPEG
    repeats them and libjpeg-turbo interpolates; and JPEG leaves the rounding of the transform to the decoder. The
    difference was not measured here. torchvision's own tests allow a mean of 2 of 255.

    Neither way applies EXIF orientation. A loader moves the module to its device if the module is `device_transform`
    itself, or a part of one (`torch.nn.Sequential`); within a function of your own, call `.to(device)` before. In a
    loader an error takes the place of the batch, whatever `on_error=` says. nvJPEG may not tell of damage: `headrace
    verify` finds it before.

    Args:
        key: which entry of the batch has the images: a mapping's key, the name of a field, or the number of an entry of
            a tuple or list. None: the batch itself is the list.
        size: of all images, in pixels: a number or (height, width). Others are resized to it, antialiased and bilinear,
            in float32, rounded; their ratio of width to height is not kept. None: all images of a batch have one size.

    Raises:
        UsageError: a batch without such an entry, or images of several sizes without `size`.
        SampleError: an image cannot be decoded; its number in the batch is in the message.

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (64, 48)).save(file, "JPEG")
        >>> headrace.transforms.DecodeJpegs(size=32)([file.getvalue()]).shape
        torch.Size([1, 3, 32, 32])
    """

    random: ClassVar[bool] = False

    _here: Tensor

    def __init__(self, key: str | int | None = None, size: int | Size | None = None) -> None:
        super().__init__()
        if isinstance(key, bool) or not isinstance(key, (str, int, type(None))):
            expected = "a name, the number of an entry, or None"
            raise wrong_argument("key", key, expected, place=PLACE)

        self.key = key
        self.size: Size | None = None
        if size is not None:
            self.size = checked_size(size)

        # An empty tensor that a loader moves along: it knows the device.
        self.register_buffer("_here", torch.empty(0, dtype=torch.uint8), persistent=False)

    def forward(self, batch: Any) -> Any:
        """Returns the batch with pixels in the place of the encoded images."""
        entry = entry_of(batch, self.key, PLACE)
        encoded = _checked(entry, self.key)
        images = self._images(encoded)
        return with_entry(batch, self.key, self._together(images))

    def _images(self, encoded: list[memoryview]) -> list[Tensor]:
        """Decodes all images; returns uint8 [3, height, width] each, on the device."""
        device = self._here.device
        found = self._images_of_library(encoded, device)
        images = []
        for number, data in enumerate(encoded):
            if number in found:
                images.append(found[number])
                continue

            pixels = decode(data, place=_place_of(number, self.key))
            image = torch.from_numpy(pixels).to(device)
            images.append(image.permute(2, 0, 1).contiguous())

        return images

    def _images_of_library(self, encoded: list[memoryview], device: torch.device) -> dict[int, Tensor]:
        """Has a library decode what it takes, in one call; returns the images by their numbers in the batch."""
        library = library_for(device)
        if library is None:
            return {}

        numbers = []
        for number, data in enumerate(encoded):
            if is_for_library(data):
                numbers.append(number)

        if len(numbers) < len(encoded):
            others = f"{len(encoded) - len(numbers)} of {len(encoded)} images"
            why = f"{others} are no whole JPEGs of the kinds that nvJPEG lists"
            say_on_cpu(device, why, "other images")
        if not numbers:
            return {}

        images = decode_on_device(library, [without_exif(encoded[number]) for number in numbers], device)
        if images is None:
            return {}
        return dict(zip(numbers, images, strict=True))

    def _together(self, images: list[Tensor]) -> Tensor:
        """Returns images as one tensor uint8 [batch, 3, height, width]. Raises `UsageError` if their sizes differ."""
        if self.size is not None:
            return resized_in_float(images, self.size)

        first = images[0].shape
        for number, image in enumerate(images):
            if image.shape != first:
                raise UsageError.about(
                    "images of a batch have several sizes",
                    place=_place_of(number, self.key),
                    found=f"{image.shape[1]} x {image.shape[2]} pixels",
                    expected=f"{first[1]} x {first[2]} pixels, as image 0 has",
                    fix=f"say what size they shall have: {PLACE}(size=(height, width))",
                )

        return torch.stack(images)

    def extra_repr(self) -> str:
        """Returns the arguments, for `repr`."""
        return f"key={self.key!r}, size={self.size}"


def _place_of(number: int, key: str | int | None) -> str:
    """Returns words for an image of a batch."""
    if key is None:
        return f"image {number} of the batch"
    return f"image {number} of the batch's entry {key!r}"


def _checked(entry: object, key: str | int | None) -> list[memoryview]:
    """Returns the bytes of each image. Raises `UsageError` if these are no encoded images."""
    if not isinstance(entry, Sequence) or isinstance(entry, (str, bytes, bytearray, memoryview)):
        raise _no_images(_kind_of(entry), f"{PLACE}(key={key!r})")
    if not entry:
        raise _no_images("an empty list", f"{PLACE}(key={key!r})")

    encoded = []
    for number, data in enumerate(entry):
        if isinstance(data, Tensor):
            data = data.numpy(force=True)

        is_array = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1
        if is_array:
            encoded.append(np.ascontiguousarray(data).data)
        elif isinstance(data, (bytes, bytearray, memoryview)):
            encoded.append(memoryview(data).cast("B"))
        else:
            raise _no_images(_kind_of(data), _place_of(number, key))

    return encoded


def _no_images(found: str, place: str) -> UsageError:
    return UsageError.about(
        "no encoded images in a batch",
        place=place,
        found=found,
        expected="a list with the bytes of each image, or with tensors uint8 [bytes]",
        fix="have the dataset return the bytes of the file, and say by key= where they are in the batch",
    )


def _kind_of(value: object) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} {value.dtype} {list(value.shape)}"
    return f"{type(value).__name__}"
