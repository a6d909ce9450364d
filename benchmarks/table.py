"""Tables in Arrow and Parquet, whose rows are shuffled, or streamed as one matrix a batch."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

import headrace
from benchmarks.datasets import write
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import Loop, exhaust, rates_in_turn, same

SIZE = 4096
NAMES = [f"c{number:02d}" for number in range(20)]
IN_MEMORY = "torch, a matrix in memory"
CHECKED = "In a first epoch every batch was compared with its source."

Columns = dict[str, np.ndarray]


class Matrix(Dataset[torch.Tensor]):
    """Rows of a table that is one array in memory: the quickest way for torch's loader, which takes them one by one."""

    def __init__(self, columns: Columns) -> None:
        self.rows = torch.from_numpy(np.stack(list(columns.values()), 1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Matrices(IterableDataset[torch.Tensor]):
    """Record batches of a file as matrices, each a batch: the quickest way for torch's loader, and the baseline."""

    def __init__(self, form: str, path: str) -> None:
        self.form, self.path = form, path

    def __iter__(self) -> Iterator[torch.Tensor]:
        for file in sorted(str(one) for one in Path(self.path).rglob(f"*.{self.form}")):
            if self.form == "arrow":
                tables = iter([pyarrow.ipc.open_file(pyarrow.memory_map(file)).read_all()])
            else:
                opened = pyarrow.parquet.ParquetFile(file)
                tables = (opened.read_row_group(group, use_threads=False) for group in range(opened.num_row_groups))
            for table in tables:
                for batch in table.to_batches(max_chunksize=SIZE):
                    yield torch.from_numpy(np.stack([column.to_numpy() for column in batch.columns], 1))


def table(rounds: int = 5, share: float = 1.0) -> list[Table]:
    """A table of 20 columns in Arrow and Parquet, shuffled and streamed: headrace, torch and baseline loops.

    In a first epoch every batch is compared with its source. share: of the rows.
    """
    count = int(5_000_000 * share)
    source = {name: np.random.default_rng(place).random(count, np.float32) for place, name in enumerate(NAMES)}
    source["c00"] = np.arange(count, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        paths = {form: write(Path(folder), f"table-{form}", form, source) for form in ("arrow", "parquet")}
        return [shuffled_rows(paths, source, rounds), streamed_rows(paths, source, rounds)]


def shuffled_rows(paths: dict[str, str], source: Columns, rounds: int) -> Table:
    """Returns the rates of rows in random order."""
    count = len(source["c00"])
    steps = min(400, count // SIZE)
    matrix = Matrix(source)
    few = RandomSampler(matrix, replacement=True, num_samples=max(steps // 10, 1) * SIZE)
    loaders: dict[str, Any] = {
        form: headrace.DataLoader(headrace.open(path), batch_size=SIZE, shuffle=True, batches_per_epoch=steps)
        for form, path in paths.items()
    }
    loaders[IN_MEMORY] = DataLoader(matrix, batch_size=SIZE, sampler=few)
    loops: dict[str, Loop] = {"baseline take": functools.partial(take_rows, source, steps)}
    for name, loader in loaders.items():
        for got in loader:
            keys = (got["c00"] if name in paths else got[:, 0]).numpy().astype(np.int64)
            compare(got, source, keys)
        loops[name] = functools.partial(part_of, loader, count)
    rates = rates_in_turn(loops, count, rounds)

    rows = [
        Row(form, {OURS: rates[form], "baseline take": rates["baseline take"], IN_MEMORY: rates[IN_MEMORY]})
        for form in paths
    ]
    title = f"table of {count / 1e6:g} M rows x 20 float32, shuffled, batches of 4,096, 0 workers"
    notes = [bytes_of_two_columns(form, path) for form, path in paths.items()]
    return Table(title, "rows/s", rows, CHECKED, base=IN_MEMORY, notes=notes)


def part_of(loader: Any, count: int) -> float:
    """Goes through an epoch, and returns which share of the rows it has."""
    exhaust(loader)
    return len(loader) * SIZE / count


def take_rows(source: Columns, steps: int) -> float:
    """The baseline loop: copies rows into memory that is used again."""
    count = len(source["c00"])
    order = torch.randperm(count).numpy()
    out = np.empty(SIZE, np.float32)
    for start in range(0, steps * SIZE, SIZE):
        for column in source.values():
            np.take(column, order[start : start + SIZE], 0, out, "clip")
    return steps * SIZE / count


def compare(batch: Any, source: Columns, rows: Any) -> None:
    """Ends the program unless a batch, a dictionary of columns or a matrix, has these rows."""
    for place, (name, column) in enumerate(source.items()):
        same(batch[name] if isinstance(batch, dict) else batch[:, place], column[rows])


def bytes_of_two_columns(form: str, path: str) -> str:
    """Returns in words what reading 2 of 20 columns reads."""
    before = bytes_read()
    for got in headrace.DataLoader(headrace.open(path, columns=["c03", "c17"]), batch_size=1 << 16):
        got["c03"].sum()
    file = sum(one.stat().st_size for one in Path(path).rglob("*") if one.is_file()) / 1e6
    read = "mapped: pages of two columns only" if form == "arrow" else f"{(bytes_read() - before) / 1e6:,.1f} MB read"
    return f"2 of 20 columns from {form} ({file:,.0f} MB): {read}"


def bytes_read() -> int:
    """Returns the bytes that this process has asked the system to read."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def streamed_rows(paths: dict[str, str], source: Columns, rounds: int) -> Table:
    """Returns the rates of tables that are read from the first row to the last, as one matrix a batch."""
    count = len(source["c00"])
    rows = []
    for form, path in paths.items():
        ours = headrace.DataLoader(headrace.open(path, stack={"x": NAMES}).stream(), batch_size=SIZE)
        first = 0
        for got in ours:
            compare(got["x"], source, slice(first, first + len(got["x"])))
            first += len(got["x"])
        loaders: dict[str, Any] = {
            "baseline reading": Matrices(form, path),
            OURS: ours,
            "headrace, 20 columns": headrace.DataLoader(headrace.open(path).stream(), batch_size=SIZE),
            "torch": DataLoader(Matrices(form, path), batch_size=None),
        }
        loops = {name: functools.partial(exhaust, loader) for name, loader in loaders.items()}
        rows.append(Row(form, rates_in_turn(loops, count, rounds)))
    title = f"table of {count / 1e6:g} M rows x 20 float32, streamed as one matrix a batch of 4,096, 0 workers"
    note = "From the second epoch on, headrace has the decoded row groups of Parquet in memory; the others decode anew."
    return Table(title, "rows/s", rows, CHECKED, notes=[note])
