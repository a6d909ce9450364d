"""Which form of data in memory or on disk loads fastest: five forms x two datasets, traversed and trained on.

    python benchmarks/forms.py [--epochs 5] [--repeats 20] [--plot forms.svg] [--json FILE]

Forms: `raw` decodes each sample at each access; `preload` holds all samples decoded in memory; `tensorclass` is a
TensorDict in memory, `tensorclass, memmap` one that is mapped; `numpy, memmap` a folder of .npy files. Each is loaded
by torch's DataLoader as people write it for that form and by headrace, in turn, in one process, shuffled, in batches
of 64, without workers. Figures are seconds for all epochs: mean (standard deviation) of the repeats. Data: 60,000 x 28
x 28 uint8 (the shape of FashionMNIST, generated) and 10,000 x 3 x 32 x 32 float32 from an .npz. What is delivered is
compared by checksums before anything is measured.
"""

from __future__ import annotations

import argparse
import statistics
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
import results
from headrace import open_writer
from headrace.types import Block, Field, Schema

FORMS = ("raw", "preload", "tensorclass", "tensorclass, memmap", "numpy, memmap")
BATCH = 64
CHECKED = "What is delivered was compared by checksums over whole epochs before anything was measured."


class Raw(Dataset):
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


class Arrays(Dataset):
    """Arrays in memory, or mapped into it, sample by sample."""

    def __init__(self, pixels: Any, labels: Any) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.as_tensor(np.array(self.pixels[index])).float(), "label": self.labels[index]}


def same(batch: Any) -> Any:
    """The collate function of data that come as whole batches."""
    batch["image"] = batch["image"].float()
    return batch


class Batches(Dataset):
    """A TensorDict, indexed by whole batches."""

    def __init__(self, stored: TensorDict) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitems__(self, keys: list[int]) -> TensorDict:
        return self.stored[keys]


STORED = (("memmap", "m"), ("npz", "p.npz"), ("tensordict", "t"))
"""What is written of each dataset: the format, and its name in the folder."""


class Form(NamedTuple):
    """A form of a dataset as people load it with torch, and with headrace."""

    theirs: Any
    ours: Any
    collate: Callable[[Any], Any] | None

    @property
    def own_collate(self) -> Callable[[Any], Any] | None:
        """The collate function that headrace needs."""
        return self.collate if isinstance(self.ours, Batches) else None


def write_forms(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Writes what `read_forms` reads."""
    schema = Schema((Field("image", "fixed", pixels.dtype, pixels.shape[1:]), Field("label", "fixed", labels.dtype)))
    block = Block(schema, {"image": pixels, "label": labels})
    for form, name in STORED:
        writer = open_writer(str(folder / name), schema, form)
        writer.append(block)
        writer.seal()


def read_forms(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> dict[str, Form]:
    """Returns all forms of a dataset that was written into this folder."""
    paths = {form: str(folder / name) for form, name in STORED}
    raw = Raw(pixels, labels)
    in_memory = TensorDict({"image": torch.from_numpy(pixels), "label": torch.from_numpy(labels)}, [len(labels)])
    mapped = {name: np.load(f"{paths['memmap']}/{name}.npy", mmap_mode="r") for name in ("image", "label")}
    return {
        "raw": Form(raw, raw, None),
        "preload": Form(Arrays(pixels, labels), headrace.open(paths["npz"]).astype(image=torch.float32), None),
        "tensorclass": Form(Batches(in_memory), Batches(in_memory), same),
        "tensorclass, memmap": Form(
            Batches(TensorDict.load_memmap(paths["tensordict"])),
            headrace.open(paths["tensordict"]).astype(image=torch.float32),
            same,
        ),
        "numpy, memmap": Form(
            Arrays(mapped["image"], mapped["label"]), headrace.open(paths["memmap"]).astype(image=torch.float32), None
        ),
    }


def loaders(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> dict[tuple[str, str], Callable[[], Any]]:
    """Writes all forms; returns what makes a loader of each, by (form, whose)."""
    write_forms(folder, pixels, labels)
    made: dict[tuple[str, str], Callable[[], Any]] = {}
    for form, read in read_forms(folder, pixels, labels).items():
        theirs, ours, collate, own = *read, read.own_collate
        made[form, "torch"] = lambda d=theirs, c=collate: DataLoader(d, BATCH, shuffle=True, collate_fn=c)
        made[form, "headrace"] = lambda d=ours, c=own: headrace.DataLoader(d, BATCH, shuffle=True, collate_fn=c)
    return made


def generated(share: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the pixels and the labels of both datasets, or a share of them."""
    rng = np.random.default_rng(0)
    many, few = int(60_000 * share), int(10_000 * share)
    return {
        "FashionMNIST's shape": (rng.integers(0, 255, (many, 28, 28), np.uint8), rng.integers(0, 10, many)),
        ".npz": (rng.random((few, 3, 32, 32), np.float32), rng.integers(0, 10, few)),
    }


def checksum(loader: Any) -> tuple[int, float, int]:
    """Returns sums over an epoch that do not depend on the order."""
    count, total, weighted = 0, 0.0, 0
    for batch in loader:
        count += len(batch["label"])
        sums = batch["image"].double().flatten(1).sum(1)
        total += round(float(sums.sum()), 3)
        weighted += int((sums.long() * (batch["label"].long() + 1)).sum())
    return count, round(total, 1), weighted


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

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.view(-1, *self.shape))


def traverse(loader: Any, epochs: int, shape: tuple[int, ...]) -> float:
    begun = time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    return time.perf_counter() - begun


def train(loader: Any, epochs: int, shape: tuple[int, ...]) -> float:
    torch.manual_seed(0)
    model = Model(shape)
    model(torch.zeros(1, *shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    begun = time.perf_counter()
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"].long())
            loss.backward()
            optimizer.step()
    return time.perf_counter() - begun


def measure(made: dict[Any, Any], given: argparse.Namespace, shape: tuple[int, ...]) -> dict[Any, list[float]]:
    expected = checksum(made["preload", "torch"]())
    for key, make in made.items():
        if (found := checksum(make())) != expected:
            raise SystemExit(f"{key} delivers something else: {found} instead of {expected}")
    seconds: dict[Any, list[float]] = {}
    for what, run in (("traversed", traverse), ("trained", train)):
        for _ in range(given.repeats):
            for form in FORMS:
                for whose in ("torch", "headrace"):
                    took = run(made[form, whose](), given.epochs, shape)
                    seconds.setdefault((what, form, whose), []).append(took)
    return seconds


def text(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ({spread:.2f})"


def tables_of(name: str, seconds: dict[Any, list[float]], epochs: int) -> list[results.Table]:
    made = []
    for what in ("traversed", "trained"):
        rows = [results.Row(form, {key: seconds[what, form, key] for key in ("torch", "headrace")}) for form in FORMS]
        title = f"{name}, {what}, {epochs} epoch{'' if epochs == 1 else 's'}"
        made.append(results.Table(title, "seconds", rows, CHECKED, better="less"))
    return made


def print_table(name: str, table: results.Table) -> None:
    what = "traversed" if "traversed" in table.title else "trained"
    print(f"\n{name}, {what}: seconds, mean (std)\n")
    print("| form | torch | headrace | ratio |\n| --- | --- | --- | --- |")
    for row in table.rows:
        theirs, ours = row.figures["torch"], row.figures["headrace"]
        ratio = statistics.mean(theirs) / statistics.mean(ours)
        print(f"| {row.title} | {text(theirs)} | {text(ours)} | {ratio:.2f} |")


def plot(path: Path, found: dict[str, dict[Any, list[float]]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(found), figsize=(11, 7), layout="constrained")
    for column, (name, seconds) in enumerate(found.items()):
        for row, what in enumerate(("traversed", "trained")):
            axis = axes[row][column]
            for place, whose in enumerate(("torch", "headrace")):
                values = [seconds[what, form, whose] for form in FORMS]
                axis.barh(
                    [number + 0.4 * place for number in range(len(FORMS))],
                    [statistics.mean(one) for one in values], 0.38,
                    xerr=[statistics.pstdev(one) for one in values], label=whose, color=("#b0b7c3", "#1f7a8c")[place],
                )  # fmt: skip
            axis.set_yticks([number + 0.2 for number in range(len(FORMS))], FORMS)
            axis.invert_yaxis()
            axis.set_title(f"{name}, {what}")
            axis.set_xlabel("seconds")
    axes[0][0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--share", type=float, default=1.0, help="of the data, to try it with less")
    results.option(parser)
    parser.add_argument("--plot", type=Path, help="where to draw the table; needs matplotlib")
    given = parser.parse_args()
    found: dict[str, dict[Any, list[float]]] = {}
    tables = []
    for name, (pixels, labels) in generated(given.share).items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(loaders(Path(folder), pixels, labels), given, pixels.shape[1:])
        tables += tables_of(name, found[name], given.epochs)
        for table in tables[-2:]:
            print_table(name, table)
    results.write(given.json, tables, ["tensordict", "pillow"])
    if given.plot is not None:
        plot(given.plot, found)
        print(f"\ndrawn: {given.plot}")


if __name__ == "__main__":
    main()
