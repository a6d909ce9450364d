"""Data that several benchmarks load: numbers, images and tokens in files, photographs, and samples that take time."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.utils.data import Dataset

from headrace import open_writer
from headrace.types import Block, Field, Schema

WINDOW = 2049
"""Tokens in a window."""


def write(folder: Path, name: str, form: str, columns: dict[str, np.ndarray]) -> str:
    """Writes columns of fixed size and returns the path."""
    schema = Schema(tuple(Field(key, "fixed", value.dtype, value.shape[1:]) for key, value in columns.items()))
    path = str(folder / name)
    writer = open_writer(path, schema, form)
    for start in range(0, len(next(iter(columns.values()))), 1 << 18):
        writer.append(Block(schema, {key: value[start : start + (1 << 18)] for key, value in columns.items()}))
    writer.seal()
    return path


def random_images(count: int) -> np.ndarray:
    """Returns images of 28 x 28 bytes."""
    return np.random.default_rng(0).integers(0, 255, (count, 28, 28), np.uint8)


class Numbers(Dataset[int]):
    """Sample i is i: nothing but the loader's own work."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class MappedImages(Dataset[Any]):
    """Images in a memory-mapped array, as people write it. Labels are numbers."""

    def __init__(self, path: str, *, as_float: bool = False) -> None:
        self.images = np.load(f"{path}/image.npy", mmap_mode="r")
        self.labels = np.load(f"{path}/label.npy", mmap_mode="r")
        self.as_float = as_float

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = torch.from_numpy(self.images[index].copy())
        return {"image": image.float() if self.as_float else image, "label": int(self.labels[index])}


class MappedTokens(Dataset[Any]):
    """Windows of a memory-mapped file of tokens, as people write it."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.tokens) // WINDOW

    def __getitem__(self, index: int) -> Any:
        start = index * WINDOW
        return {"data": torch.from_numpy(self.tokens[start : start + WINDOW].astype(np.int64))}


def spin(seconds: float) -> None:
    """Keeps one core busy for so long, by the CPU time of the calling thread."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


class Remote(Numbers):
    """Small files on a disk with a latency of some milliseconds."""

    def __init__(self, length: int, latency: float) -> None:
        super().__init__(length)
        self.latency = latency

    def read_file(self, key: int) -> np.ndarray:
        """Returns what a file holds."""
        if self.latency:
            time.sleep(self.latency)
        return np.full(4000, key, np.float32)

    def __getitem__(self, key: int) -> Any:
        return self.read_file(key), key


class Photos(Numbers):
    """JPEGs in memory, decoded at each access, or decoded before; `blur` is the radius of a slow transform."""

    def __init__(self, length: int, *, size: int, decoded: bool = False, blur: float = 0.0) -> None:
        super().__init__(length)
        coarse = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
        image = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=92)
        self.jpeg, self.blur = file.getvalue(), blur
        self.small = np.asarray(image.resize((64, 64))) if decoded else None

    def decode(self) -> Image.Image:
        """Returns the pixels."""
        image = Image.open(io.BytesIO(self.jpeg))
        image.load()
        return image

    def transform(self, image: Image.Image) -> np.ndarray:
        """Returns what training wants."""
        if self.blur:
            image = image.filter(ImageFilter.GaussianBlur(self.blur))
        return np.asarray(image.resize((64, 64), Image.Resampling.NEAREST))

    def __getitem__(self, key: int) -> Any:
        pixels = self.small if self.small is not None else self.transform(self.decode())
        return pixels, key


class Busy(Numbers):
    """Samples that take a core for a while, or wait; `slow` ones among them, each so many times as long."""

    def __init__(
        self, length: int, cpu: float = 0.0, *, wait: float = 0.0, slow: tuple[int, ...] = (), times: float = 1.0
    ) -> None:
        super().__init__(length)
        self.cpu, self.wait, self.slow, self.times = cpu, wait, frozenset(slow), times

    def __getitem__(self, key: int) -> Any:
        times = self.times if key in self.slow else 1.0
        if self.cpu:
            spin(self.cpu * times)
        if self.wait:
            time.sleep(self.wait * times)
        return np.full(1000, key, np.float32), key
