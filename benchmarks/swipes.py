"""Swipe trajectories: how people load them with torch, baseline loops, headrace, and the memory of a process tree.

The features, the noise and the ways to pad are those of `examples/trajectories`.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import headrace
from benchmarks.harness.turns import fail, same
from headrace import open_writer
from headrace.types import Block, Field, Ragged, Schema

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "trajectories"))

import augment
import collate
import features
import generate

BATCH = 320
Columns = dict[str, tuple[np.ndarray, np.ndarray]]
"""Of each column the values of all samples end to end, and where each begins [n + 1]."""

FEATURES = Schema(
    (
        Field("features", "ragged", np.dtype(np.float32), (len(features.COLUMNS),)),
        Field("keys", "ragged", np.dtype(np.uint8)),
        Field("target", "ragged", np.dtype(np.uint8)),
    )
)

CUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "all per access": ((), (0, 1, 2)),
    "derivatives stored": ((0, 1), (2,)),
    "tokens stored": ((0, 2), (1,)),
    "all stored": ((0, 1, 2), ()),
}
"""Which steps are stored, and which are made at each access, by their places in `features.ONE_BY_ONE`; noise is always
made at access. Normalising comes first everywhere."""


# -- data --------------------------------------------------------------------------------------------------------------


def mapped(path: str | Path) -> Columns:
    """Returns stored columns, mapped into memory."""
    stored = headrace.open(path)
    columns = {name: stored.reader.column(name) for name in stored.schema.names}
    return {name: (np.asarray(column.values), np.asarray(column.offsets)) for name, column in columns.items()}


def prepare(folder: Path, count: int) -> tuple[str, str]:
    """Writes trajectories, and their features, unless they are there. Returns both paths."""
    source, ready = folder / f"source-{count}", folder / f"features-{count}"
    if not source.exists():
        generate.write(source, count)
    if not ready.exists():
        writer = open_writer(ready, FEATURES, "memmap")
        for block in blocks(mapped(source), 1 << 14):
            for step in features.IN_BLOCKS:
                block = step(block)
            writer.append(Block(FEATURES, block))
        writer.seal()
    return str(source), str(ready)


def blocks(columns: Columns, size: int) -> Iterator[dict[str, Any]]:
    """Yields trajectories as batched steps get them."""
    (points, at), (letters, within) = columns["points"], columns["word"]
    for start in range(0, len(at) - 1, size):
        some, ends = at[start : start + size + 1], within[start : start + size + 1]
        spelled = [letters[a:b].tobytes().decode() for a, b in itertools.pairwise(ends)]
        yield {"points": Ragged(points[some[0] : some[-1]], some - some[0]), "word": spelled}


# -- torch -------------------------------------------------------------------------------------------------------------


class Flat(Dataset[Any]):
    """Contiguous arrays and offsets, as people write it who know why."""

    def __init__(self, columns: Columns, steps: Sequence[Callable[[Any], Any]]) -> None:
        self.columns, self.steps = columns, steps
        self.owns = "features" in columns and len(steps) > 0  # steps write into what they get

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))[1]) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for name, (values, offsets) in self.columns.items():
            value = values[offsets[index] : offsets[index + 1]]
            sample[name] = value.tobytes().decode() if name == "word" else value
        if self.owns:
            sample["features"] = sample["features"].copy()
        for step in self.steps:
            sample = step(sample)
        return sample


class ByHand(Flat):
    """`__getitems__`: a whole batch by arrays, the same batched steps in it, and padded: no call for a sample alone."""

    def __getitems__(self, indices: list[int]) -> dict[str, collate.Pair]:
        block = block_of(self.columns, np.asarray(indices))
        for step in self.steps:
            block = step(block)
        return {name: padded(column) for name, column in block.items()}


def block_of(columns: Columns, keys: np.ndarray) -> dict[str, Any]:
    """Returns these samples as batched steps get them."""
    block: dict[str, Any] = {}
    for name, column in columns.items():
        ragged = gathered(column, keys)
        block[name] = ragged
        if name == "word":
            letters, offsets = ragged.values.tobytes().decode(), ragged.offsets.tolist()
            block[name] = [letters[begin:end] for begin, end in itertools.pairwise(offsets)]
    return block


def gathered(column: tuple[np.ndarray, np.ndarray], keys: np.ndarray) -> Ragged:
    """Returns the values of these samples, end to end."""
    values, offsets = column
    begins = offsets[keys]
    lengths = offsets[keys + 1] - begins
    ends = np.append(0, np.cumsum(lengths))
    some = np.empty((int(ends[-1]), *values.shape[1:]), values.dtype)
    for begin, length, to in zip(begins.tolist(), lengths.tolist(), ends.tolist(), strict=False):
        some[to : to + length] = values[begin : begin + length]
    return Ragged(some, ends)


def padded(column: Ragged) -> collate.Pair:
    """Returns a column as one tensor, filled up with zeros."""
    lengths = column.lengths
    inside = np.arange(lengths.max()) < lengths[:, None]
    out = np.zeros((*inside.shape, *column.values.shape[1:]), column.values.dtype)
    out[inside] = column.values
    return collate.Pair(torch.from_numpy(out), torch.from_numpy(lengths))


def noise_by_hand() -> Callable[[Any], Any]:
    """Returns `augment.noise_all` with a generator of its own."""
    generator = np.random.default_rng(0)

    def noise(block: dict[str, Any]) -> dict[str, Any]:
        features = block["features"].values
        moved = generator.standard_normal((len(features), 2), np.float32) * augment.STRENGTH
        features[:, 0] += moved[:, 0]
        features[:, 1] += moved[:, 1]
        return block

    return noise


class Listed(Dataset[Any]):
    """A list of tuples of arrays, as most people write it."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.samples = pickle.load(file)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(FEATURES.names, self.samples[index], strict=True))


def write_list(ready: str, path: Path) -> None:
    """Pickles the features as a list of tuples of arrays."""
    flat = Flat(mapped(ready), ())
    with path.open("wb") as file:
        pickle.dump([tuple(value.copy() for value in flat[i].values()) for i in range(len(flat))], file, protocol=5)


def build_flat(source: Columns, steps: Sequence[Callable[[Any], Any]], folder: Path) -> Columns:
    """Makes features sample by sample, saves them as contiguous arrays, and returns these, mapped into memory."""
    flat = Flat(source, steps)
    samples = [flat[index] for index in range(len(flat))]
    folder.mkdir()
    columns = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(first, str):
            values = [np.frombuffer(value.encode(), np.uint8) for value in values]
        np.save(folder / f"{name}.npy", np.concatenate(values))
        offsets = np.cumsum([0, *map(len, values)])
        columns[name] = np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")), offsets
    return columns


# -- headrace ----------------------------------------------------------------------------------------------------------


def one_by_one(places: Sequence[int], *, noise: bool = False) -> list[Any]:
    """Returns the steps at these places, for one sample each."""
    return [features.ONE_BY_ONE[place] for place in places] + ([augment.noise] if noise else [])


def declared(places: Sequence[int], *, noise: bool, batched: bool = True) -> list[Any]:
    """Returns the same for headrace; those that take blocks if `batched`."""
    if not batched:
        steps = one_by_one(places)
        return [*steps, headrace.step(augment.noise, random=True)] if noise else steps
    steps = [headrace.step(features.IN_BLOCKS[place], batched=True) for place in places]
    return [*steps, headrace.step(augment.noise_all, batched=True, random=True)] if noise else steps


def staged(source: str, cut: str, cache: Any, *, noise: bool = True, batched: bool = True) -> Any:
    """Returns the staged dataset with one of the cuts."""
    stored, access = CUTS[cut]
    return headrace.Staged(
        headrace.open(source),
        initial_transform=declared(stored, noise=False, batched=batched),
        get_item_transform=declared(access, noise=noise, batched=batched),
        cache=cache if stored else None,
    )


# -- contestants -------------------------------------------------------------------------------------------------------


def as_it_is(batch: Any) -> Any:
    """Collates what is a batch already."""
    return batch


class Contestant(NamedTuple):
    """A dataset, and how torch's loader collates it; None: headrace's loader."""

    dataset: Any
    pad: Callable[[Any], Any] | None = None

    def loader(self, keys: np.ndarray, workers: int = 0) -> Any:
        """Returns a loader of these samples, in this order."""
        if self.pad is None:
            return headrace.DataLoader(self.dataset, BATCH, sampler=keys.tolist(), num_workers=workers)
        words: dict[str, Any] = {"sampler": keys.tolist(), "num_workers": workers, "collate_fn": self.pad}
        return DataLoader(self.dataset, BATCH, **words)


def rivals(source: str, ready_path: str, cache: str) -> dict[str, dict[str, Contestant]]:
    """Returns who takes part: with everything stored, and with everything made at each access."""
    ready, raw = mapped(ready_path), mapped(source)
    flat = Flat(ready, ())
    alone = Flat(raw, one_by_one((0, 1, 2), noise=True))
    by_hand = ByHand(raw, [*features.IN_BLOCKS, noise_by_hand()])
    return {
        "everything stored": {
            "torch": Contestant(flat, collate.pad_arrays),
            "torch, pad_sequence": Contestant(flat, collate.pad_tensors),
            "torch, whole batches by hand": Contestant(ByHand(ready, ()), as_it_is),
            "headrace": Contestant(staged(source, "all stored", cache, noise=False)),
        },
        "everything at each access": {
            "torch": Contestant(alone, collate.pad_arrays),
            "torch, pad_sequence": Contestant(alone, collate.pad_tensors),
            "torch, whole batches by hand": Contestant(by_hand, as_it_is),
            "headrace": Contestant(staged(source, "all per access", None)),
            "headrace, the functions that torch has": Contestant(staged(source, "all per access", None, batched=False)),
        },
    }


# -- the baseline, and the truth --------------------------------------------------------------------------------------


def bare(ready: Columns, keys: np.ndarray) -> None:
    """Copies and pads batches into memory that is used again: the work itself, in NumPy, without a loader."""
    room = {name: np.empty(BATCH * 256 * values[0].size, values.dtype) for name, (values, _) in ready.items()}
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        for name, (values, offsets) in ready.items():
            begins = offsets[part]
            pad_into(room[name], values, begins, offsets[part + 1] - begins)


def pad_into(room: np.ndarray, values: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> None:
    """Copies pieces of values into the rows of a padded batch, in memory that is used again."""
    shape = (len(begins), int(lengths.max()), *values.shape[1:])
    out = room[: int(np.prod(shape))].reshape(shape)
    out[...] = 0
    for row, begin, length in zip(out, begins.tolist(), lengths.tolist(), strict=True):
        row[:length] = values[begin : begin + length]


def bare_steps(raw: Columns, keys: np.ndarray) -> None:
    """Makes batches from raw trajectories by the same batched steps, and pads them: a loop without a loader."""
    room: dict[str, np.ndarray] = {}
    noise = noise_by_hand()
    for start in range(0, len(keys), BATCH):
        block = block_of(raw, keys[start : start + BATCH])
        for step in (*features.IN_BLOCKS, noise):
            block = step(block)
        for name in FEATURES.names:
            column = block[name]
            if name not in room:
                room[name] = np.empty(BATCH * 256 * column.values[0].size, column.values.dtype)
            pad_into(room[name], column.values, column.offsets[:-1], np.diff(column.offsets))


def check(loader: Any, keys: np.ndarray, ready: Columns, *, noisy: bool) -> None:
    """Compares all batches with the features they should hold, value by value; coordinates may be off by the noise."""
    noises, seen = [], 0
    for number, batch in enumerate(loader):
        part = keys[number * BATCH : (number + 1) * BATCH]
        if sorted(batch) != sorted(ready):
            fail(f"a batch holds {sorted(batch)}")
        for name, (values, offsets) in ready.items():
            padded, lengths = (one.numpy() for one in batch[name])
            expected = collate.pad_arrays([{name: values[offsets[key] : offsets[key + 1]]} for key in part])[name]
            truth = expected.values.numpy()
            same(lengths, expected.lengths)
            if padded.dtype != truth.dtype or padded.shape != truth.shape:
                fail(f"{name} of a batch has another shape than its source")
            if name == "features" and noisy:
                inside = np.arange(padded.shape[1]) < lengths[:, None]
                noises.append((padded - truth)[inside][:, :2])
                truth[inside, :2] = padded[inside, :2]
            same(padded, truth)
        seen += len(part)
    if seen != len(keys):
        fail(f"{seen} samples came instead of {len(keys)}")
    if noisy and not 0.98 < np.concatenate(noises).std() / augment.STRENGTH < 1.02:
        fail("the noise is of another strength")


# -- memory ------------------------------------------------------------------------------------------------------------


def footprint(pid: int) -> tuple[int, int]:
    """Returns the memory of a process and its descendants in bytes, shared pages counted once (Linux's PSS).

    First all of it; then what the machine cannot take back at any time: without pages of mapped files.
    """
    total = kept = 0
    members = [pid]
    for member in members:
        try:
            rows = [line.split() for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()[1:]]
            for children in Path(f"/proc/{member}/task").glob("*/children"):
                members.extend(int(child) for child in children.read_text().split())
        except OSError:
            continue  # it ended meanwhile
        sizes = {row[0]: int(row[1]) << 10 for row in rows}
        total += sizes["Pss:"]
        kept += sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]
    return total, kept


def shuffled(count: int, some: int, seed: int) -> np.ndarray:
    """Returns `some` keys of `count` in random order, none twice."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()[:some]
