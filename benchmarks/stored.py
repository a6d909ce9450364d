"""Stored data: headrace.open with headrace.DataLoader, torch's loader, and bare loops, in turn, in one run.

    python benchmarks/stored.py                 all sections
    python benchmarks/stored.py images tokens   some of: images tokens table paths
    python benchmarks/stored.py --json FILE     also write the figures there; --share 0.1: of a tenth of the data

Every section first goes through one epoch in which all that is delivered is compared with the source, then measures in
rounds, each loader in turn, and prints medians. A bare loop is NumPy that does nothing but the work, into memory that
is used again, so that nobody could keep a batch. Data lie in the page cache.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import headrace
from rates import Loop, all_in_turn, exhaust, show_rates, write
from results import Row, Table, option, peer
from results import write as write_results

EVERY = "In a first epoch every batch was compared with its source."

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


def images(folder: Path, rounds: int, share: float) -> list[Table]:
    rng, made = np.random.default_rng(0), []
    count = int(60_000 * share)
    source = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8)
    path = write(folder, "images", "memmap", {"image": source, "label": np.arange(count)})
    tensordict = peer("tensordict")
    if tensordict:
        write(folder, "images-td", "tensordict", {"image": source, "label": np.arange(count)})
    stored = headrace.open(path)
    flat = np.load(f"{path}/image.npy", mmap_mode="r").reshape(count, -1)
    labels = np.asarray(np.load(f"{path}/label.npy", mmap_mode="r"))
    flat = np.asarray(flat)
    for size, as_float in ((512, False), (64, True)):
        dataset = stored.astype(image=torch.float32) if as_float else stored
        compare(headrace.DataLoader(dataset, batch_size=size, shuffle=True), source)

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
            mapped = tensordict.TensorDict.load_memmap(folder / "images-td")
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
        if as_float and tensordict:
            loops["tensordict, batched reading"] = tensordict_loop
        pairs = [("headrace", "torch, memory-mapped"), ("headrace", "bare loop")]
        pairs += [("headrace", "tensordict, batched reading")] if "tensordict, batched reading" in loops else []
        kind = "float32" if as_float else "uint8"
        rates = all_in_turn(loops, count, rounds)
        title = f"images 28x28, shuffled, {kind}, batches of {size}, 0 workers"
        show_rates(title, "samples/s", rates, pairs)
        row = Row("", {name.replace("torch, memory-mapped", "torch"): values for name, values in rates.items()})
        made.append(Table(title, "samples/s", [row], EVERY))
    return made


def compare(loader: Any, source: np.ndarray) -> None:
    """Raises unless an epoch delivers every image of the source once; labels are their places."""
    seen = np.zeros(len(source), np.int64)
    for batch in loader:
        keys = batch["label"].numpy()
        seen[keys] += 1
        if not np.array_equal(batch["image"].numpy(), source[keys]):
            raise SystemExit("a batch differs from its source")
    if not (seen == 1).all():
        raise SystemExit("not every sample came once")


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


def tokens(folder: Path, rounds: int, share: float) -> list[Table]:
    length, batch, total = 2049, 32, int(1_000_000_000 * share)
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
    took = (time.perf_counter() - begun) * 1e3
    opening = f"opening a memory-mapped file of {total * 2 / 1e9:.{0 if share == 1 else 2}f} GB: {took:.1f} ms"
    print(f"\n{opening}")
    dataset = whole.windows(length).astype(torch.int64)
    windows = len(dataset)
    some = min(40_000, windows)
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

    def part(cls: Any, data: Any, workers: int, of_them: float = 1.0) -> Loop:
        chosen = torch.utils.data.Subset(data, order[: int(some * of_them)].tolist())
        loader = cls(chosen, batch_size=batch, num_workers=workers, persistent_workers=workers > 0)

        def loop() -> float:
            exhaust(loader)
            return of_them

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
    rates = all_in_turn(loops, some, rounds)
    title = "tokens: windows of 2,049 from uint16, int64 out, shuffled, batches of 32"
    show_rates(title, "windows/s", rates, pairs)
    path.unlink()
    rows = [
        Row("0 workers", {"bare loop": rates["bare loop"]} | of_workers(rates, 0)),
        Row("2 workers", of_workers(rates, 2)),
    ]
    return [Table(title, "windows/s", rows, EVERY, notes=[f"{opening[0].upper()}{opening[1:]}."])]


def of_workers(rates: dict[str, list[float]], workers: int) -> dict[str, list[float]]:
    """Returns the rates of loops that are called after so many workers, without that part of their names."""
    ending = f", {workers} workers"
    return {name.removesuffix(ending): values for name, values in rates.items() if name.endswith(ending)}


# -- table -------------------------------------------------------------------------------------------------------------


class Matrix(Dataset):
    """Rows of a table that is one array in memory: the quickest way for torch's loader, which takes them one by one."""

    def __init__(self, columns: Any) -> None:
        self.rows = torch.from_numpy(np.stack(list(columns), 1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def rows(folder: Path, rounds: int, share: float) -> list[Table]:
    count, size, names = int(5_000_000 * share), 4096, [f"c{number:02d}" for number in range(20)]
    source = {name: np.random.default_rng(place).random(count, np.float32) for place, name in enumerate(names)}
    source["c00"] = np.arange(count, dtype=np.float32)
    paths = {form: write(folder, f"table-{form}", form, source) for form in ("arrow", "parquet")}
    steps = min(400, count // size)

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
    loops["torch, a matrix in memory"] = by_rows(source, size, max(steps // 10, 1))
    rates = all_in_turn(loops, count, rounds)
    pairs = [(name, other) for other in ("bare take from RAM", "torch, a matrix in memory") for name in rates
             if name.startswith("headrace")]  # fmt: skip
    millions = f"{count / 1e6:g} M"
    title = f"table of {millions} rows x 20 float32, shuffled, batches of 4,096, 0 workers"
    show_rates(title, "rows/s", rates, pairs)
    notes = []
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
        notes.append(f"2 of 20 columns from {form} ({file:,.0f} MB): {note}")
        print(f"  {notes[-1]}")
    others = {"bare take": rates["bare take from RAM"], "torch, a matrix in memory": rates["torch, a matrix in memory"]}
    lines = [Row(form, {"headrace": rates[f"headrace, {form}"]} | others) for form in paths]
    shuffled = Table(title, "rows/s", lines, EVERY, base="torch, a matrix in memory", notes=notes)
    return [shuffled, streamed_rows(paths, source, rounds)]


class Batches(IterableDataset):
    """Record batches of a file as matrices, each a batch: the quickest way for torch's loader."""

    def __init__(self, form: str, path: str) -> None:
        self.form, self.path = form, path

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.from_numpy, matrices(self.form, self.path))


def matrices(form: str, path: str, size: int = 4096) -> Iterator[np.ndarray]:
    """Yields the rows of a table as matrices: the bare reading of its record batches, and nothing else."""
    for file in sorted(str(one) for one in Path(path).rglob(f"*.{form}")):
        if form == "arrow":
            tables = iter([pyarrow.ipc.open_file(pyarrow.memory_map(file)).read_all()])
        else:
            opened = pyarrow.parquet.ParquetFile(file)
            tables = (opened.read_row_group(group, use_threads=False) for group in range(opened.num_row_groups))
        for table in tables:
            for batch in table.to_batches(max_chunksize=size):
                yield np.stack([column.to_numpy() for column in batch.columns], 1)


def streamed_rows(paths: dict[str, str], source: dict[str, np.ndarray], rounds: int) -> Table:
    """Prints and returns the rates of tables that are read from the first row to the last, as one matrix a batch."""
    count, names = len(source["c00"]), list(source)
    loops: dict[str, Loop] = {}
    for form, path in paths.items():
        ours = headrace.DataLoader(headrace.open(path, stack={"x": names}).stream(), batch_size=4096)
        single = headrace.DataLoader(headrace.open(path).stream(), batch_size=4096)
        first = 0
        for got in ours:
            rows = slice(first, first + len(got["x"]))
            if any(not np.array_equal(got["x"][:, place], source[name][rows]) for place, name in enumerate(names)):
                raise SystemExit("a streamed batch differs from its source")
            first = rows.stop
        theirs = DataLoader(Batches(form, path), batch_size=None)
        loops[f"{form}, bare reading"] = lambda form=form, path=path: exhaust(matrices(form, path))
        loops[f"{form}, headrace"] = lambda ours=ours: exhaust(ours)
        loops[f"{form}, headrace, 20 columns"] = lambda single=single: exhaust(single)
        loops[f"{form}, torch"] = lambda theirs=theirs: exhaust(theirs)
    rates = all_in_turn(loops, count, rounds)
    title = f"table of {count / 1e6:g} M rows x 20 float32, streamed as one matrix a batch of 4,096, 0 workers"
    pairs = [(f"{form}, headrace", f"{form}, {other}") for form in paths for other in ("bare reading", "torch")]
    show_rates(title, "rows/s", rates, pairs)
    lines = []
    for form in paths:
        ending = f"{form}, "
        lines.append(Row(form, {name.removeprefix(ending): rates[name] for name in rates if name.startswith(ending)}))
    note = "From the second epoch on, headrace has the decoded row groups of Parquet in memory; the others decode anew."
    return Table(title, "rows/s", lines, EVERY, notes=[note])


def by_rows(source: dict[str, np.ndarray], size: int, steps: int) -> Loop:
    """Returns a loop of torch's loader over so many batches of a matrix; a first epoch is compared with its source."""
    matrix = Matrix(source.values())
    sampler = torch.utils.data.RandomSampler(matrix, replacement=True, num_samples=steps * size)
    loader = DataLoader(matrix, batch_size=size, sampler=sampler)
    for got in loader:
        keys = got[:, 0].numpy().astype(np.int64)
        if any(not np.array_equal(got[:, place].numpy(), column[keys]) for place, column in enumerate(source.values())):
            raise SystemExit("a batch differs from its source")

    def loop() -> float:
        exhaust(loader)
        return steps * size / len(matrix)

    return loop


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


def paths(folder: Path, rounds: int, share: float) -> list[Table]:
    from headrace.data.path_table import PathTable

    count, reads = int(10_000_000 * share), int(2_000_000 * share)

    def names() -> Iterator[str]:
        return (f"/datasets/images/train/n{i % 1000:08d}/{i:012d}.JPEG"[:50] for i in range(count))

    kept = PathTable.from_paths(names())
    print(f"\n{count:,} paths of {len(kept[0])} characters: {kept.nbytes / 1e6:,.0f} MB (headrace.compact)")
    held = {"torch": [count * (sys.getsizeof(kept[0]) + 8) / 1e6], "headrace": [kept.nbytes / 1e6]}
    print(f"  as a list of str: {held['torch'][0]:,.0f} MB")
    words: dict[str, Any] = {"batch_size": 1000, "num_workers": 4, "persistent_workers": True}
    ours = headrace.DataLoader(Paths(kept), shuffle=True, seed=0, batches_per_epoch=reads // 1000, **words)
    grown = {"headrace": watched("headrace.compact", ours)}
    del ours, kept
    listed = Paths(list(names()))
    sampler = torch.utils.data.RandomSampler(listed, replacement=True, num_samples=reads)
    grown["torch"] = watched("a list of str, torch", DataLoader(listed, sampler=sampler, **words))
    title = f"{count:,} paths of 50 characters: as a list of str, and as headrace.compact holds them"
    lines = [Row("the paths alone", held)]
    for place, when in enumerate(("to begin with", f"after {reads:,} reads", "after a second epoch")):
        lines.append(
            Row(f"4 forked workers and their parent, {when}", {key: [one[place]] for key, one in grown.items()})
        )
    checked = "Lengths of all paths that were read were summed up and compared."
    return [Table(title, "MB", lines, checked, better="less")]


def watched(name: str, loader: Any) -> list[float]:
    """Returns the memory of all processes at the first batch, after an epoch and after a second one, in MB."""
    from headrace.core.process.memory import tree_memory

    def rest(iterator: Any) -> None:
        if any(int(batch.sum()) != 50 * len(batch) for batch in iterator):
            raise SystemExit("a path is of another length")

    iterator = iter(loader)
    next(iterator)
    sizes = [tree_memory(os.getpid()) / 1e6]
    for again in (iterator, loader):
        rest(again)
        sizes.append(tree_memory(os.getpid()) / 1e6)
    growth = [100 * (after - before) / before for before, after in itertools.pairwise(sizes)]
    print(f"  {name}, 4 forked workers: {sizes[0]:,.0f} MB, after an epoch {sizes[1]:,.0f} MB ({growth[0]:+.2f} %),")
    print(f"    after a second one {sizes[2]:,.0f} MB ({growth[1]:+.2f} %)")
    return sizes


SECTIONS = {"images": images, "tokens": tokens, "table": rows, "paths": paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="which; otherwise all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the data, to try it with less")
    option(parser)
    given = parser.parse_args()
    tables = []
    for name in given.sections or SECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            tables += SECTIONS[name](Path(folder), given.rounds, given.share)
    write_results(given.json, tables, ["tensordict", "pyarrow"])


if __name__ == "__main__":
    main()
