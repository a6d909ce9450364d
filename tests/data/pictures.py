"""Image files for the tests of image folders."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

ORANGE = (240, 120, 10)


def save(path: Path, color: tuple[int, int, int] = ORANGE, size: tuple[int, int] = (16, 12)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path
