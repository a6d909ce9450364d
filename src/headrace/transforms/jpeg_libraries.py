"""Libraries that decode JPEGs on a CUDA device, and which JPEGs may be given to them.

They decode by nvJPEG, whose pixels differ from libjpeg-turbo's where colours are stored at half size: torchvision and
torchcodec create it with default flags (pytorch/vision `decode_jpegs_cuda.cpp`, meta-pytorch/torchcodec
`DecodeJpegCuda.cpp`), with which it repeats colours (sgl-project/sglang#34163) that libjpeg-turbo interpolates
(NVIDIA/DALI#3610, NVIDIA/DALI#4662).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.core.text.log_once import warn_once
from headrace.transforms.decoders import PIXEL_LIMIT
from headrace.transforms.headers import FRAMES, is_complete, number_at, read_header, segments

IMPORT_FAILURES = (ImportError, RuntimeError, OSError, AttributeError)
"""What importing a library raises that is missing, or was built for another torch."""

BROKEN_DEVICE = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""Kinds of RuntimeError that tell nothing of a JPEG."""

BASELINE, PROGRESSIVE = 0xC0, 0xC2
"""Frames of the JPEGs that nvJPEG's documentation lists ("Baseline and Progressive JPEG decoding")."""

APP0, APP1, APP14 = 0xE0, 0xE1, 0xEE

YCBCR = b"\1"
"""Adobe's number for three channels that are YCbCr; 0 are RGB, or unknown."""


class JpegLibrary(NamedTuple):
    """A library that decodes JPEGs on a CUDA device.

    decode: gets JPEGs, uint8 [bytes] on the CPU, and the device; returns RGB, uint8 [3, height, width] there. Raises
    RuntimeError if it refuses one of them, and does not say which.
    """

    name: str
    decode: Callable[[list[Tensor], torch.device], list[Tensor]]


def library_for(device: torch.device) -> JpegLibrary | None:
    """Returns what decodes JPEGs on a device; None, and a line in the log, where nothing does."""
    if device.type == "cpu":
        why = "the module lies there; DataLoader(device_transform=) moves it, and so does .to(device)"
        if not torch.accelerator.is_available():
            why = "there is no accelerator"
        say_on_cpu(device, why)
        return None
    if device.type != "cuda":
        say_on_cpu(device, f"no library decodes JPEGs on a device of the type {device.type}")
        return None

    library, missing = _installed()
    if library is None:
        fix = "install torchcodec (0.16 or later), or have workers decode, by headrace.transforms.EvalImages"
        say_on_cpu(device, f"no library decodes JPEGs there ({missing}); {fix}")
    return library


def say_on_cpu(device: torch.device, why: str, about: str = "no library") -> None:
    """Says in the log, once, that images are decoded on the CPU, and why. about: the kind of reason."""
    where = "on the CPU, in the process of the loop"
    if device.type != "cpu":
        where += f", and copies their pixels to {device}"

    warn_once(f"JPEGs on the CPU: {about}", f"DecodeJpegs decodes images {where}: {why}")


@functools.cache
def _installed() -> tuple[JpegLibrary | None, str]:
    """Returns the library that is installed, or why each of them cannot be used."""
    missing = []
    for name, load in (("torchcodec", _torchcodec), ("torchvision", _torchvision)):
        try:
            return JpegLibrary(name, load()), ""
        except IMPORT_FAILURES as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            missing.append(f"{name}: {reason[0]}")

    return None, "; ".join(missing)


def _torchcodec() -> Callable[[list[Tensor], torch.device], list[Tensor]]:
    from torchcodec.decoders import decode_jpeg

    def decode(encoded: list[Tensor], device: torch.device) -> list[Tensor]:
        images: list[Tensor] = decode_jpeg(encoded, mode="RGB", device=device)
        return images

    return decode


def _torchvision() -> Callable[[list[Tensor], torch.device], list[Tensor]]:
    from torchvision.io import ImageReadMode, decode_jpeg

    def decode(encoded: list[Tensor], device: torch.device) -> list[Tensor]:
        images: list[Tensor] = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
        return images

    return decode


def decode_on_device(library: JpegLibrary, encoded: list[Tensor], device: torch.device) -> list[Tensor] | None:
    """Decodes JPEGs, uint8 [bytes] on the CPU, in one call; returns RGB, uint8 [3, height, width] each.

    The images may be used on the stream that the calling thread computes on. Returns None, and says so in the log, if
    the library refuses them.
    """
    stream = torch.cuda.current_stream(device)
    own = _stream_of(device)
    # Memory that was freed on the user's stream may still be read there, by work that was asked for before. The
    # libraries write to such memory without waiting for that work (pytorch/vision#9606, meta-pytorch/torchcodec#1634).
    # What is allocated for another stream is not given out anew before all streams that it is lent to have come so far.
    try:
        with torch.cuda.stream(own):
            images = library.decode(encoded, device)
    except RuntimeError as error:
        if isinstance(error, BROKEN_DEVICE):
            raise
        say_on_cpu(device, f"{library.name} refused a batch ({error})", "a refused batch")
        return None

    stream.wait_stream(own)
    for image in images:
        image.record_stream(stream)
    return images


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def is_for_library(data: memoryview) -> bool:
    """Tells whether a library shall decode these bytes.

    False for what nvJPEG does not list, or could guess at without a word: other formats, JPEGs that are cut off, have
    other than 8 bits, four channels (CMYK), or three that nothing calls YCbCr.
    """
    header = read_header(data)
    if header is None or header.format != "jpeg" or not header.plain:
        return False
    if header.height * header.width > PIXEL_LIMIT or not is_complete(data, header):
        return False
    return _has_known_frame(data)


def _has_known_frame(data: memoryview) -> bool:
    """Tells whether a JPEG's frame is one that nvJPEG lists, and its channels are gray or YCbCr.

    What is YCbCr: as libjpeg-turbo has it (`default_decompress_parms` in jdapimin.c), where that has not to guess.
    """
    known = False
    channels = b""
    is_jfif = False
    adobe = None
    for marker, offset in segments(data):
        if marker in FRAMES:
            # B.2.2: behind the number of components each has its name, its sampling factors and its table.
            parameters = bytes(data[offset + 9 : offset + 2 + number_at(data, offset + 2)])
            channels = parameters[1::3]
            known = marker in (BASELINE, PROGRESSIVE)
        elif marker == APP0 and bytes(data[offset + 4 : offset + 9]) == b"JFIF\0":
            is_jfif = True
        elif marker == APP14 and bytes(data[offset + 4 : offset + 9]) == b"Adobe":
            adobe = bytes(data[offset + 15 : offset + 16])

    if len(channels) == 1:
        return known
    if adobe is not None:
        return known and adobe == YCBCR
    return known and (is_jfif or channels == b"\1\2\3")


def without_exif(data: memoryview) -> Tensor:
    """Copies a JPEG to a tensor uint8 [bytes], without EXIF: torchcodec would turn the image as its orientation says,
    which no other decoder here does."""
    kept = bytearray()
    done = 0
    for marker, offset in segments(data):
        if marker == APP1 and bytes(data[offset + 4 : offset + 10]) == b"Exif\0\0":
            kept += data[done:offset]
            done = offset + 2 + number_at(data, offset + 2)

    kept += data[done:]
    return torch.frombuffer(kept, dtype=torch.uint8)
