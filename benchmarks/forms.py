"""Which form of data in memory or on disk loads fastest: five forms x two datasets, traversed and trained on."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDict
from torch import nn
from torch.utils.data import DataLoader, Dataset

import headrace
from benchmarks.datasets import write
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import fail, in_turn

BATCH = 64


class Raw(Dataset[Any]):
    """Encoded samples, decoded at each access: PNG, or an .npy file for what PNG cannot hold."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.labels, self.encoded = labels, []
        for one in pixels:
            stream = BytesIO()
            if one.dtype == np.uint8:
                Image.fromarray(one).save(stream, "PNG", compress_level=1)
            else:
                np.save(stream, one)
            self.encoded.append(stream.getvalue())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        data = BytesIO(self.encoded[index])
        png = self.encoded[index].startswith(b"\x89PNG")
        pixels = np.array(Image.open(data)) if png else np.load(data)
        return {"image": torch.from_numpy(pixels).float(), "label": self.labels[index]}


class Arrays(Dataset[Any]):
    """Arrays in memory, or mapped into it, sample by sample."""

    def __init__(self, pixels: Any, labels: Any) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.as_tensor(np.array(self.pixels[index])).float(), "label": self.labels[index]}


class Batches(Dataset[Any]):
    """A TensorDict, indexed by whole batches."""

    def __init__(self, stored: TensorDict) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitems__(self, keys: list[int]) -> TensorDict:
        return self.stored[keys]


def whole(batch: Any) -> Any:
    """The collate function of data that come as whole batches."""
    batch["image"] = batch["image"].float()
    return batch


class Form(NamedTuple):
    """A form of a dataset as people load it with torch, and with headrace."""

    theirs: Any
    ours: Any
    collate: Callable[[Any], Any] | None = None

    @property
    def own_collate(self) -> Callable[[Any], Any] | None:
        """The collate function that headrace needs."""
        return self.collate if isinstance(self.ours, Batches) else None


def write_forms(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Writes what `read_forms` reads."""
    for form, name in (("memmap", "m"), ("npz", "p.npz"), ("tensordict", "t")):
        write(folder, name, form, {"image": pixels, "label": labels})


def read_forms(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> dict[str, Form]:
    """Returns all forms of a dataset that was written into this folder."""

    def stored(name: str) -> Any:
        return headrace.open(str(folder / name)).astype(image=torch.float32)

    raw = Raw(pixels, labels)
    in_memory = TensorDict({"image": torch.from_numpy(pixels), "label": torch.from_numpy(labels)}, [len(labels)])
    mapped = (np.load(folder / "m" / f"{name}.npy", mmap_mode="r") for name in ("image", "label"))
    return {
        "raw": Form(raw, raw),
        "preload": Form(Arrays(pixels, labels), stored("p.npz")),
        "tensorclass": Form(Batches(in_memory), Batches(in_memory), whole),
        "tensorclass, memmap": Form(Batches(TensorDict.load_memmap(folder / "t")), stored("t"), whole),
        "numpy, memmap": Form(Arrays(*mapped), stored("m")),
    }


def loader_of(form: Form, whose: str) -> Any:
    """Returns a loader of a form."""
    if whose == OURS:
        return headrace.DataLoader(form.ours, BATCH, shuffle=True, collate_fn=form.own_collate)
    return DataLoader(form.theirs, BATCH, shuffle=True, collate_fn=form.collate)


def generated(share: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the pixels and the labels of both datasets, or a share of them."""
    rng = np.random.default_rng(0)
    many, few = int(60_000 * share), int(10_000 * share)
    return {
        "FashionMNIST's shape": (rng.integers(0, 255, (many, 28, 28), np.uint8), rng.integers(0, 10, many)),
        ".npz": (rng.random((few, 3, 32, 32), np.float32), rng.integers(0, 10, few)),
    }


def checksum(images: torch.Tensor, labels: torch.Tensor) -> int:
    """Returns a sum over samples in which an image counts by its label."""
    sums = images.double().flatten(1).sum(1).long()
    return int((sums * (labels.long() + 1)).sum())


def compare(loader: Any, pixels: np.ndarray, labels: np.ndarray, what: str) -> None:
    """Ends the program unless an epoch has the samples of the dataset."""
    expected = len(labels), checksum(torch.from_numpy(pixels), torch.from_numpy(labels))
    count = total = 0
    for batch in loader:
        count += len(batch["label"])
        total += checksum(batch["image"], batch["label"])
    if (count, total) != expected:
        fail(f"{what} delivers something else: {count, total} instead of {expected}")


class Model(nn.Module):
    """A small network of convolutions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels = shape[0] if len(shape) == 3 else 1
        self.shape = (channels, *shape[-2:])
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
            nn.LazyLinear(10),
        )  # fmt: skip
        self(torch.zeros(1, *shape))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.view(-1, *self.shape))


def train(loader: Any, model: nn.Module) -> None:
    """Trains for an epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"].long())
        loss.backward()
        optimizer.step()


def seconds_of(form: Form, whose: str, epochs: int, train_on: tuple[int, ...] | None) -> float:
    """Returns the seconds of some epochs, traversed, or with a network that trains on images of this shape."""
    loader = loader_of(form, whose)
    torch.manual_seed(0)
    model = Model(train_on) if train_on is not None else None
    began = time.perf_counter()
    for _ in range(epochs):
        if model is not None:
            train(loader, model)
        else:
            for _ in loader:
                pass
    return time.perf_counter() - began


def forms(epochs: int = 2, rounds: int = 5, share: float = 1.0) -> list[Table]:
    """Which form of data in memory or on disk loads fastest: five forms x two datasets, traversed and trained on.

    Forms: `raw` decodes each sample at each access; `preload` holds all samples decoded in memory; `tensorclass` is a
    TensorDict in memory, `tensorclass, memmap` one that is mapped; `numpy, memmap` a folder of .npy files. Each is
    loaded by torch's DataLoader as people write it for that form and by headrace, in turn, in one process, shuffled, in
    batches of 64, without workers. Data: 60,000 x 28 x 28 uint8 (the shape of FashionMNIST, generated) and 10,000 x 3 x
    32 x 32 float32 from an .npz. What is delivered is compared by checksums before anything is measured. share: of the
    data.
    """
    tables = []
    for name, (pixels, labels) in generated(share).items():
        with tempfile.TemporaryDirectory() as folder:
            write_forms(Path(folder), pixels, labels)
            made = read_forms(Path(folder), pixels, labels)
            for key, form in made.items():
                for whose in ("torch", OURS):
                    compare(loader_of(form, whose), pixels, labels, f"{key}, {whose}")
            for what, shape in (("traversed", None), ("trained", pixels.shape[1:])):
                rows = []
                for key, form in made.items():
                    calls = {
                        whose: functools.partial(seconds_of, form, whose, epochs, shape) for whose in ("torch", OURS)
                    }
                    rows.append(Row(key, in_turn(calls, rounds, untimed=0)))
                title = f"{name}, {what}, {epochs} epoch{'' if epochs == 1 else 's'}"
                checked = "What is delivered was compared by checksums over whole epochs before anything was measured."
                tables.append(Table(title, "seconds", rows, checked, better="less"))
    return tables
