"""Stored data: headrace.open with headrace.DataLoader, torch's loader, and bare loops, in turn, in one run.

    python benchmarks/stored.py                 all sections
    python benchmarks/stored.py images tokens   some of: images tokens table paths

Every section first goes through one epoch in which all that is delivered is compared with the source, then measures in
rounds, each loader in turn, and prints medians. A bare loop is NumPy that does nothing but the work, into memory that
is used again, so that nobody could keep a batch. Data lie in the page cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import headrace
from rates import Loop, exhaust, in_turn, table, write

# -- images ------------------------------------------------------------------------------------------------------------


class PerSample(Dataset):
    """A memory-mapped array as people write it."""

    def __init__(self, path: str, as_float: bool) -> None:
        self.images = np.load(f"{path}/image.npy", mmap_mode="r")
        self.labels = np.load(f"{path}/label.npy", mmap_mode="r")
        self.as_float = as_float

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = torch.from_numpy(self.images[index].copy())
        return (image.float() if self.as_float else image), int(self.labels[index])


def images(folder: Path, rounds: int) -> None:
    rng = np.random.default_rng(0)
    count = 60_000
    source = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8)
    path = write(folder, "images", "memmap", {"image": source, "label": np.arange(count)})
    write(folder, "images-td", "tensordict", {"image": source, "label": np.arange(count)})
    stored = headrace.open(path)
    flat = np.load(f"{path}/image.npy", mmap_mode="r").reshape(count, -1)
    labels = np.asarray(np.load(f"{path}/label.npy", mmap_mode="r"))
    flat = np.asarray(flat)
    for size, as_float in ((512, False), (64, True)):
        dataset = stored.astype(image=torch.float32) if as_float else stored
        seen = np.zeros(count, np.int64)
        for batch in headrace.DataLoader(dataset, batch_size=size, shuffle=True):
            keys = batch["label"].numpy()
            seen[keys] += 1
            if not np.array_equal(batch["image"].numpy(), source[keys]):
                raise SystemExit("a batch differs from its source")
        if not (seen == 1).all():
            raise SystemExit("not every sample came once")

        def bare(size: int = size, as_float: bool = as_float) -> None:
            order = torch.randperm(count).numpy()
            pixels, classes = np.empty((size, 784), np.uint8), np.empty(size, np.int64)
            floats = np.empty((size, 784), np.float32)
            for start in range(0, count - size + 1, size):
                keys = order[start : start + size]
                np.take(flat, keys, 0, pixels, "clip")
                np.take(labels, keys, 0, classes, "clip")
                if as_float:
                    floats[...] = pixels

        def tensordict_loop(size: int = size, as_float: bool = as_float) -> None:
            from tensordict import TensorDict

            mapped = TensorDict.load_memmap(folder / "images-td")
            order = torch.randperm(count)
            for start in range(0, count, size):
                batch = mapped[order[start : start + size]]
                if as_float:
                    batch["image"] = batch["image"].float()

        ours = headrace.DataLoader(dataset, batch_size=size, shuffle=True)
        torchs = DataLoader(PerSample(path, as_float), batch_size=size, shuffle=True)
        loops: dict[str, Loop] = {
            "bare loop": bare,
            "headrace": lambda ours=ours: exhaust(ours),
            "torch, memory-mapped": lambda torchs=torchs: exhaust(torchs),
        }
        if as_float:
            loops["tensordict, batched reading"] = tensordict_loop
        pairs = [("headrace", "torch, memory-mapped"), ("headrace", "bare loop")]
        pairs += [("headrace", "tensordict, batched reading")] if as_float else []
        kind = "float32" if as_float else "uint8"
        rates = in_turn(loops, count, rounds)
        table(f"images 28x28, shuffled, {kind}, batches of {size}, 0 workers", "samples/s", rates, pairs)


# -- tokens ------------------------------------------------------------------------------------------------------------


class Tokens(Dataset):
    """Windows of a memory-mapped file as people write them."""

    def __init__(self, path: str, length: int) -> None:
        self.tokens, self.length = np.load(path, mmap_mode="r"), length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.length
        return torch.from_numpy(self.tokens[start : start + self.length].astype(np.int64))


def tokens(folder: Path, rounds: int) -> None:
    length, batch, total = 2049, 32, 1_000_000_000
    path = folder / "tokens.npy"
    file = np.lib.format.open_memmap(path, "w+", np.uint16, (total,))
    piece = np.random.default_rng(0).integers(0, 50_000, 1 << 24, dtype=np.uint16)
    for start in range(0, total, len(piece)):
        file[start : start + len(piece)] = piece[: total - start]
        file[start] = start // len(piece)
    del file
    mapped = np.asarray(np.load(path, mmap_mode="r"))
    whole = headrace.open(path)
    begun = time.perf_counter()
    headrace.open(path)
    print(f"\nopening a memory-mapped file of {total * 2 / 1e9:.0f} GB: {(time.perf_counter() - begun) * 1e3:.1f} ms")
    dataset = whole.windows(length).astype(torch.int64)
    windows, some = len(dataset), 40_000
    order = np.random.default_rng(1).permutation(windows)[:some]
    for number, got in enumerate(headrace.DataLoader(dataset, batch_size=batch, sampler=order.tolist())):
        for row, key in zip(got["data"], order[number * batch :], strict=False):
            if not np.array_equal(row.numpy(), mapped[key * length : (key + 1) * length]):
                raise SystemExit("a window differs from its source")

    def bare() -> None:
        out = np.empty((batch, length), np.int64)
        for start in range(0, some, batch):
            for place, key in enumerate(order[start : start + batch].tolist()):
                out[place] = mapped[key * length : (key + 1) * length]

    def part(cls: Any, data: Any, workers: int, share: float = 1.0) -> Loop:
        chosen = torch.utils.data.Subset(data, order[: int(some * share)].tolist())
        loader = cls(chosen, batch_size=batch, num_workers=workers, persistent_workers=workers > 0)

        def loop() -> float:
            exhaust(loader)
            return share

        return loop

    loops = {
        "bare loop": bare,
        "headrace, 0 workers": part(headrace.DataLoader, dataset, 0),
        "torch, 0 workers": part(DataLoader, Tokens(str(path), length), 0),
        "headrace, 2 workers": part(headrace.DataLoader, dataset, 2),
        "torch, 2 workers": part(DataLoader, Tokens(str(path), length), 2, 0.25),
    }
    pairs = [("headrace, 0 workers", "torch, 0 workers"), ("headrace, 0 workers", "bare loop")]
    pairs += [("headrace, 2 workers", "torch, 2 workers"), ("headrace, 2 workers", "headrace, 0 workers")]
    rates = in_turn(loops, some, rounds)
    table("tokens: windows of 2,049 from uint16, int64 out, shuffled, batches of 32", "windows/s", rates, pairs)
    path.unlink()


# -- table -------------------------------------------------------------------------------------------------------------


def rows(folder: Path, rounds: int) -> None:
    count, size, names = 5_000_000, 4096, [f"c{number:02d}" for number in range(20)]
    source = {name: np.random.default_rng(place).random(count, np.float32) for place, name in enumerate(names)}
    source["c00"] = np.arange(count, dtype=np.float32)
    paths = {form: write(folder, f"table-{form}", form, source) for form in ("arrow", "parquet")}
    steps = 400

    def bare() -> float:
        order = torch.randperm(count).numpy()
        out = np.empty(size, np.float32)
        for start in range(0, steps * size, size):
            for column in source.values():
                np.take(column, order[start : start + size], 0, out, "clip")
        return steps * size / count

    loops: dict[str, Loop] = {"bare take from RAM": bare}
    for form, path in paths.items():
        dataset = headrace.open(path)
        loader = headrace.DataLoader(dataset, batch_size=size, shuffle=True, batches_per_epoch=steps)
        for got in loader:
            keys = got["c00"].numpy().astype(np.int64)
            if any(not np.array_equal(got[name].numpy(), source[name][keys]) for name in names):
                raise SystemExit("a batch differs from its source")

        def loop(loader: Any = loader) -> float:
            exhaust(loader)
            return steps * size / count

        loops[f"headrace, {form}"] = loop
    rates = in_turn(loops, count, rounds)
    pairs = [(name, "bare take from RAM") for name in rates if name.startswith("headrace")]
    table("table of 5 M rows x 20 float32, shuffled, batches of 4,096, 0 workers", "rows/s", rates, pairs)
    for form, path in paths.items():
        before = bytes_read()
        some = headrace.open(path, columns=["c03", "c17"])
        for got in headrace.DataLoader(some, batch_size=1 << 16):
            got["c03"].sum()
        file = sum(one.stat().st_size for one in Path(path).rglob("*") if one.is_file()) / 1e6
        note = (
            f"{(bytes_read() - before) / 1e6:,.1f} MB read"
            if form == "parquet"
            else "mapped: pages of two columns only"
        )
        print(f"  2 of 20 columns from {form} ({file:,.0f} MB): {note}")


def bytes_read() -> int:
    """Returns the bytes that this process has asked the system to read."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


# -- paths -------------------------------------------------------------------------------------------------------------


class Paths(Dataset):
    def __init__(self, paths: Any) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


def paths(folder: Path, rounds: int) -> None:
    from headrace.dataset.path_table import PathTable
    from headrace.observe.memory import tree_memory

    count = 10_000_000
    made = (f"/datasets/images/train/n{i % 1000:08d}/{i:012d}.JPEG"[:50] for i in range(count))
    kept = PathTable.from_paths(made)
    print(f"\n10 million paths of {len(kept[0])} characters: {kept.nbytes / 1e6:,.0f} MB (headrace.compact)")
    bytes_list = sys.getsizeof(kept[0]) + 8
    print(f"  as a list of str: {count * bytes_list / 1e6:,.0f} MB")
    loader = headrace.DataLoader(
        Paths(kept),
        batch_size=1000,
        shuffle=True,
        seed=0,
        num_workers=4,
        persistent_workers=True,
        batches_per_epoch=2000,
    )
    iterator = iter(loader)
    next(iterator)
    before = tree_memory(os.getpid())
    exhaust(iterator)
    after = tree_memory(os.getpid())
    share = 100 * (after - before) / before
    print(f"  with 4 forked workers: {before / 1e6:,.0f} MB, after 2 M reads {after / 1e6:,.0f} MB ({share:+.2f} %)")
    exhaust(loader)
    again = tree_memory(os.getpid())
    print(f"  after a second epoch: {again / 1e6:,.0f} MB ({100 * (again - after) / after:+.2f} %)")


SECTIONS = {"images": images, "tokens": tokens, "table": rows, "paths": paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="which; otherwise all")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for name in given.sections or SECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            SECTIONS[name](Path(folder), given.rounds)


if __name__ == "__main__":
    main()
