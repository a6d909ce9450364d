"""Images for the tests of transforms, made with a seed."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def smooth(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Soft shapes with a little noise, uint8 [height, width, 3]: what JPEG was made for."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 24), max(2, width // 24), 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = rng.integers(-4, 5, (height, width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)


def encoded(image: Any, form: str = "JPEG", **options: Any) -> bytes:
    """An array or PIL image in a file's form."""
    file = BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, form, **options)
    return file.getvalue()


def by_pillow(data: bytes) -> NDArray[np.uint8]:
    """The plain way: uint8 [height, width, 3]."""
    with Image.open(BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def difference(one: Any, other: Any) -> NDArray[np.int64]:
    """How far each number of one image is from the other's."""
    return np.abs(np.asarray(one).astype(np.int64) - np.asarray(other).astype(np.int64))
