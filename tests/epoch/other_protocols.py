"""Datasets and samplers whose attributes have the names that headrace looks for, and another meaning."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

LENGTH = 8


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))


class StreamWithArguments(Numbers):
    """As MosaicML Streaming and LitData have it."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        raise AssertionError("called")

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        raise AssertionError("called")


class RowsWithArguments(Rows):
    state_dict = StreamWithArguments.state_dict
    load_state_dict = StreamWithArguments.load_state_dict


class IteratorWithArguments(Numbers):
    def __iter__(self) -> Iterator[int]:
        return PlainIterator()


class PlainIterator:
    def __init__(self) -> None:
        self.numbers = iter(range(LENGTH))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.numbers)

    def state_dict(self, rank: int) -> dict[str, Any]:
        raise AssertionError("called")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("called")

    def next_batch(self, size: int) -> list[int]:
        raise AssertionError("called")


class SamplerWithArguments(Sampler[int]):
    """As several libraries of training have it, with a generator that gives the order."""

    world = 3
    elastic = "no"
    uneven = None
    takes_all_alike = "no"
    samples_of_dataset = "all"
    excluded = "none"

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))

    def state_dict(self, iteration: int, num_processes: int) -> dict[str, Any]:
        raise AssertionError("called")

    def load_state_dict(self, state: Any, iteration: int) -> None:
        raise AssertionError("called")

    def set_epoch(self) -> None:
        raise AssertionError("called")


class SamplerWithOtherWords(SamplerWithArguments):
    """Its state is as headrace asks for it; its other attributes are not what headrace's samplers have."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {}

    def load_state_dict(self, state: Any) -> None:  # type: ignore[override]
        pass

    def check_state(self) -> None:
        raise AssertionError("called")


class EpochWithStage(Rows):
    def set_epoch(self, epoch: int, stage: str) -> None:
        raise AssertionError("called")


class OtherValues(Rows):
    """Attributes of these names that are no methods, and are not of the type that headrace knows."""

    state_dict = load_state_dict = fetch_batch = prepare = byte_ranges = live_sampler = set_epoch = fingerprint = None
    draws = lies_in_memory = lies_elsewhere = endless = ragged = "no"
    place = 3
    samples = imgs = 4
    as_source = path_of_sample = commit = False


class OtherMethods(Rows):
    """Methods of these names that do something else."""

    lies_in_memory = True
    lies_elsewhere = True
    endless = True

    def prepare(self, path: str, mode: str) -> None:
        raise AssertionError("called")

    place = byte_ranges = commit = path_of_sample = live_sampler = as_source = prepare

    def fetch_batch(self, start: int, count: int) -> list[int]:
        raise AssertionError("called")


class Module(torch.nn.Module):
    """A dataset with a network in it. torch gives it a `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(100, 100)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class ModuleOfItsOwn(Module):
    """Adds to what torch saves."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "more": torch.zeros(1)}


class Holder:
    """Has weights as TensorDicts have them."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        raise AssertionError("called")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("called")


class Failing:
    """Its state fails up to a sample."""

    def __init__(self, until: int = LENGTH, *, how: str = "raises") -> None:
        self.until = until
        self.how = how
        self.made = 0

    def state_dict(self) -> dict[str, Any]:
        if self.made > self.until:
            return {"made": self.made}
        if self.how == "raises":
            raise NotImplementedError("no state yet")
        if self.how == "stops":
            raise StopIteration
        return {"lock": threading.Lock()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


class FailingStream(Failing, IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while self.made < LENGTH:
            self.made += 1
            yield self.made - 1
        self.made = 0


class FailingRows(Failing, Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        self.made += 1
        return index


class StreamDiesOnce(FailingStream):
    """Ends its worker at the sixth sample, once."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            if number == 5 and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield number


class RowsDieOnce(FailingRows):
    """The same, map-style."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def __getitem__(self, index: int) -> int:
        if index == 5 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class FailingSampler(Sampler[int]):
    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not while it runs\nand more lines")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("called")


class AllAttributes:
    """A proxy: it has every attribute, and each is a method that takes anything."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **words: None
