"""A folder of small photos of which some are broken, each in another way."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from headrace.testing import Exit, Fault, Hang, Kill, Segfault

SIDE = 32


class BadLabelError(Exception):
    """An exception that can neither be pickled nor made from one string."""

    def __init__(self, key: int, label: str) -> None:
        super().__init__(f"the label of {key} is {label}")
        self.kept = lambda: key


def jpeg(side: int = SIDE, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def bomb() -> bytes:
    """Returns a JPEG whose header promises 65,000 x 65,000 pixels."""
    data = bytearray(jpeg())
    frame = data.index(b"\xff\xc0") + 5
    data[frame : frame + 4] = (65_000).to_bytes(2, "big") * 2
    return bytes(data)


FILES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_bytes(jpeg()[:-400]),
    "empty": lambda path: path.write_bytes(b""),
    "zero bytes": lambda path: path.write_bytes(bytes(900)),
    "wrong magic": lambda path: path.write_bytes(b"RIFF" + jpeg()[4:]),
    "bomb": lambda path: path.write_bytes(bomb()),
    "text": lambda path: path.write_text("<html>404 Not Found</html>"),
    "missing": lambda path: path.unlink(missing_ok=True),
    "a folder": lambda path: path.mkdir(),
    "of another size": lambda path: path.write_bytes(jpeg(SIDE + 8)),
}
if os.geteuid() != 0:  # to whom nothing is forbidden
    FILES["forbidden"] = lambda path: (path.write_bytes(jpeg()), path.chmod(0))

CRASHES: dict[str, Fault] = {"segfault": Segfault(), "exits": Exit(3), "killed": Kill()}

WAYS = [*FILES, "bad label", *CRASHES]
"""How photos are broken; besides, some hang."""


class CorruptPhotos(Dataset[tuple[torch.Tensor, int]]):
    """Photos from a folder, each with its number. Reading one takes a moment, as from a disk."""

    def __init__(self, folder: Path, length: int, share: float, hanging: int) -> None:
        """Writes the photos; `share` of them are broken, of which `hanging` hang."""
        self.folder = folder
        self.length = length
        broken = np.random.default_rng(7).choice(length, round(share * length), replace=False).tolist()
        self.broken: dict[int, str] = {
            key: "hangs" if number < hanging else WAYS[number % len(WAYS)] for number, key in enumerate(broken)
        }
        for key in range(length):
            spoil = FILES.get(self.broken.get(key, ""))
            if spoil is None:
                self.path(key).write_bytes(jpeg(seed=key))
            else:
                spoil(self.path(key))

    def path(self, key: int) -> Path:
        return self.folder / f"{key}.jpg"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> tuple[torch.Tensor, int]:
        Hang(0.001)()
        way = self.broken.get(key)
        if way == "hangs":
            Hang()()
        elif way == "bad label":
            raise BadLabelError(key, "?")
        elif way in CRASHES:
            CRASHES[way]()
        with Image.open(self.path(key)) as image:
            return torch.from_numpy(np.array(image)), key
