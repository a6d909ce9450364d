"""Datasets for the engine's tests, at module level so that every start method can send them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """`length` images of 249 KB; image i is filled with i."""

    def __init__(self, length: int = 64, side: int = 144) -> None:
        self.length = length
        self.shape = (3, side, side)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(self.shape, float(index)), index


class Nested(Dataset[Any]):
    """Samples of a given structure of shapes and dtypes, with contents that depend on the index."""

    def __init__(self, length: int, spec: Any) -> None:
        self.length = length
        self.spec = spec

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return fill(self.spec, index)


def fill(spec: Any, index: int) -> Any:
    if isinstance(spec, dict):
        return {key: fill(value, index) for key, value in spec.items()}
    if isinstance(spec, list):
        return [fill(value, index) for value in spec]
    shape, dtype, as_array = spec
    values = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) * 31 + index * 7
    array = np.asarray(values % 119, dtype=dtype)
    return array if as_array else torch.from_numpy(array)


class Failing(Dataset[torch.Tensor]):
    """Raises `error` for one key."""

    def __init__(self, key: int, error: Exception) -> None:
        self.key = key
        self.error = error

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.key:
            raise self.error
        return torch.tensor(index)


class FailingStream(IterableDataset[int]):
    """Yields three numbers and raises."""

    def __iter__(self) -> Any:
        yield from range(3)
        raise ValueError("the stream broke")


def keep_python_objects(samples: list[Any]) -> list[Any]:
    return samples


def lambdas(samples: list[Any]) -> Any:
    return lambda: samples


def make_large_text(samples: list[Any]) -> tuple[str, bytes]:
    return "x" * 1_000_000, b"y" * 3_000_000


def collate_twice(samples: list[Any]) -> Any:
    """Collates by torch's default, throws the result away, and returns another view of a second one."""
    torch.utils.data.default_collate(samples)
    images, labels = torch.utils.data.default_collate(samples)
    return {"images": images, "red": images[:, 0], "labels": labels}


class EndsLate(IterableDataset[int]):
    """Numbers, which end only when somebody opens a named pipe for writing."""

    def __init__(self, length: int, gate: Path) -> None:
        self.length = length
        self.gate = str(gate)

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)
        with open(self.gate) as gate:
            gate.read()
