"""Encoded images of many kinds, and whether a library shall decode them on a device."""

from __future__ import annotations

import torch
from PIL import Image

from headrace.transforms import decode
from tests.transforms.pictures import encoded, smooth

HEIGHT, WIDTH = 48, 64
JPEGS = [encoded(smooth(HEIGHT, WIDTH, seed), quality=90) for seed in range(5)]
OTHER_SIZE = encoded(smooth(30, 80, 7), quality=90)
CMYK = encoded(Image.fromarray(smooth(HEIGHT, WIDTH, 8)).convert("CMYK"))
PNG = encoded(smooth(HEIGHT, WIDTH, 9), "PNG")
WITHOUT_JFIF = JPEGS[0].replace(b"JFIF\0", b"JFXX\0", 1)
CUT_OFF = JPEGS[0][: len(JPEGS[0]) // 2]

TURNED = Image.Exif()
TURNED[0x0112] = 6  # a quarter turn

KINDS = {
    "a plain one": (JPEGS[0], True),
    "progressive": (encoded(smooth(HEIGHT, WIDTH, 1), progressive=True), True),
    "gray": (encoded(smooth(HEIGHT, WIDTH, 2)[:, :, 0]), True),
    "with EXIF orientation": (encoded(smooth(HEIGHT, WIDTH, 3), exif=TURNED.tobytes()), True),
    "followed by zeros": (JPEGS[1] + bytes(20), True),
    "CMYK": (CMYK, False),
    "RGB": (encoded(smooth(HEIGHT, WIDTH, 4), keep_rgb=True), False),
    "PNG": (PNG, False),
}
"""Images, and whether a library shall decode them."""


def on_cpu(images: list[bytes]) -> torch.Tensor:
    """What this package's own decoder makes of images: uint8 [images, 3, height, width]."""
    return torch.stack([torch.from_numpy(decode(image)).permute(2, 0, 1) for image in images])
