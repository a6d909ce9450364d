"""Documents packed to a budget: rates and padding beside Grain and TRL, balance over ranks, few shapes, resumes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import fail, in_turn
from benchmarks.peers import missing
from headrace.packing.shapes import best_lengths, counts_of
from headrace.samplers import MaxTokensBatchSampler, PackedBatchSampler

BUDGETS = (8192, 32768)
WINDOW = 10_000
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}
TOGETHER = "headrace, plan and tokens"
TRL, BEST, FIRST = "TRL, bfd", "Grain, best fit", "Grain, first fit"
BINS = 64
"""Open packs of Grain: with more, its packs are fuller, and it is slower."""

Lengths = np.ndarray[Any, np.dtype[np.int32]]
Pack = Callable[[], tuple[int, Callable[[], Any]]]
"""Packs all documents. Returns the packs, and what counts the tokens of each document in them."""
Rate = tuple[float, float]
"""Documents per second, and the padding in percent."""


class Documents(Dataset[dict[str, Any]]):
    """Documents whose tokens are their own numbers."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.tokens = [np.full(length, key, np.int32) for key, length in enumerate(lengths)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[key]}


def drawn(count: int, longest: int) -> Lengths:
    """Returns lengths as texts have them: lognormal, few hundred tokens on average."""
    return np.clip(np.random.default_rng(0).lognormal(6, 1, count), 1, longest).astype(np.int32)


def rate(documents: Documents, budget: int, pack: Pack) -> Rate:
    """Returns the rate of what packs all documents, whose outcome is then looked at."""
    began = time.perf_counter()
    packs, counts = pack()
    seconds = time.perf_counter() - began
    if not np.array_equal(counts(), documents.lengths):
        fail("a document is missing, or came twice")
    return len(documents) / seconds, 100 * (1 - documents.lengths.sum(dtype=np.int64) / (packs * budget))


def tokens_in(rows: list[Any], count: int) -> Any:
    """Returns how many tokens of each document there are. rows: of tokens, which are the numbers of documents."""
    return np.bincount(np.concatenate(rows), minlength=count)


def planned(documents: Documents, budget: int) -> tuple[int, Callable[[], Any]]:
    """Plans an epoch, as the length of the sampler does."""
    sampler = PackedBatchSampler(documents.lengths, budget, window=WINDOW, **ALONE)

    def counts() -> Any:
        batches: list[Any] = list(islice(sampler, None))
        sizes = np.concatenate([batch.pieces.stops - batch.pieces.starts for batch in batches])
        return np.bincount(np.concatenate(batches), sizes, len(documents)).astype(np.int32)

    return len(sampler), counts


def laid(documents: Documents, budget: int) -> tuple[int, Callable[[], Any]]:
    """Plans an epoch and lays the tokens end to end, without workers."""
    sampler = PackedBatchSampler(documents.lengths, budget, window=WINDOW, **ALONE)
    loader: Any = headrace.DataLoader(documents, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    batches = list(loader)
    rows = [batch["input_ids"][batch["document_ids"] >= 0].numpy() for batch in batches]
    return len(batches), lambda: tokens_in(rows, len(documents))


def of_grain(documents: Documents, budget: int, kind: str) -> tuple[int, Callable[[], Any]]:
    """Packs the documents with Grain, in a window of open packs."""
    import grain.python as grain
    from grain import experimental

    source = grain.MapDataset.source([{"tokens": tokens} for tokens in documents.tokens]).to_iter_dataset()
    packed = getattr(experimental, kind)(
        source, length_struct={"tokens": budget}, num_packing_bins=BINS, shuffle_bins=False
    )
    packs = list(packed)
    rows = [row["tokens"][row["tokens_segment_ids"] > 0] for row in packs]
    return len(packs), lambda: tokens_in(rows, len(documents))


def of_trl(table: Any, budget: int, count: int) -> tuple[int, Callable[[], Any]]:
    """Packs the documents with TRL, so many at a time as headrace plans."""
    from trl import pack_dataset

    packed = pack_dataset(table, budget, "bfd", {"batch_size": WINDOW})
    return len(packed), lambda: tokens_in(
        [packed.data.column("input_ids").combine_chunks().flatten().to_numpy()], count
    )


def packing(documents: int = 10_000, rounds: int = 3) -> list[Table]:
    """Documents per second and padding, beside Grain and TRL, which lay the tokens end to end at once.

    Lengths are lognormal (mean 660), in random order. headrace and TRL see windows of 10,000 documents, Grain 64 open
    packs. All run in one process, without workers. Every token of every document must come once.
    """
    rates, paddings, notes = [], [], []
    absent = {name: missing(module) for name, module in {TRL: "trl", BEST: "grain", FIRST: "grain"}.items()}
    reasons = {name: reason for name, reason in absent.items() if reason}
    for budget in BUDGETS:
        data = Documents(drawn(documents, budget))
        calls: dict[str, Pack] = {
            OURS: functools.partial(planned, data, budget),
            TOGETHER: functools.partial(laid, data, budget),
        }
        if not absent[BEST]:
            calls[BEST] = functools.partial(of_grain, data, budget, "BestFitPackIterDataset")
            calls[FIRST] = functools.partial(of_grain, data, budget, "FirstFitPackIterDataset")
        if not absent[TRL]:
            from datasets import Dataset as Table_
            from datasets import disable_caching, disable_progress_bars

            disable_caching()
            disable_progress_bars()
            table = Table_.from_dict({"input_ids": data.tokens})
            calls[TRL] = functools.partial(of_trl, table, budget, len(data))
        timed = {name: functools.partial(rate, data, budget, call) for name, call in calls.items()}
        found = in_turn(timed, rounds)
        rates.append(
            Row(f"budget {budget:,}", {name: [one[0] for one in runs] for name, runs in found.items()}, reasons)
        )
        padded = {name: [one[1] for one in runs] for name, runs in found.items()}
        paddings.append(Row(f"budget {budget:,}", padded, reasons))
        many = drawn(20 * documents, budget)
        packs = len(PackedBatchSampler(many, budget, **ALONE))
        padding = 100 * (1 - many.sum(dtype=np.int64) / (packs * budget))
        notes.append(
            f"{len(many):,} documents in windows that the sampler chooses, budget {budget:,}: {padding:.2f} %."
        )
    checked = "Every token of every document came once."
    return [
        Table("documents packed on one core", "documents/s", rates, checked, base=TRL),
        Table("padding", "%", paddings, checked, better="less", base=TRL, notes=notes),
        *balance(documents=50 * documents, rounds=1),
        *loaders(documents=documents, rounds=rounds),
        *plans(lengths=10_000 * documents, rounds=rounds),
    ]


# -- balance -----------------------------------------------------------------------------------------------------------

RANKS, STEPS = 64, 4
DEALT = "as dealt"


def imbalance(lengths: Lengths, budget: int, cost: Any, given: Any) -> float:
    """Returns the most that a rank has in a step beside the mean of all ranks; the mean of all steps."""
    power = 2 if cost == "attention" else 1
    costs = []
    for batch in islice(PackedBatchSampler(lengths, budget, balance=given, **ALONE), None):
        sizes = (batch.pieces.stops - batch.pieces.starts).astype(np.float64)  # type: ignore[attr-defined]
        costs.append(float((sizes**power).sum()))
    whole = len(costs) // (RANKS * STEPS) * RANKS * STEPS
    steps = np.array(costs[:whole]).reshape(-1, STEPS, RANKS).sum(axis=1)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean())


def balance(documents: int, rounds: int) -> list[Table]:
    """Returns how unlike the work of 64 ranks is in a step of four accumulated batches."""
    rows = []
    for budget in BUDGETS:
        lengths = drawn(documents, budget)
        for cost in ("tokens", "attention"):
            calls = {
                DEALT: functools.partial(imbalance, lengths, budget, cost, None),
                OURS: functools.partial(imbalance, lengths, budget, cost, cost),
            }
            rows.append(Row(f"{cost}, budget {budget:,}", in_turn(calls, rounds, untimed=0)))
    title = f"the busiest of {RANKS} ranks beside the mean, {STEPS} accumulation steps"
    return [Table(title, "x", rows, "The costs are those of the packs that came.", better="less", base=DEALT)]


# -- loaders -----------------------------------------------------------------------------------------------------------


def batches_per_second(loader: Any, lengths: Lengths) -> float:
    """Returns the rate of an epoch, in which every token must come."""
    began = time.perf_counter()
    count = tokens = 0
    for batch in loader:
        count += 1
        tokens += int((batch["document_ids"] >= 0).sum())
    seconds = time.perf_counter() - began
    if tokens != lengths.sum(dtype=np.int64):
        fail("tokens are missing, or came twice")
    return count / seconds


def loaders(documents: int, rounds: int) -> list[Table]:
    """Returns the rates of packed batches of headrace's loader and of torch's, with the same sampler and collation."""
    data = Documents(drawn(documents, 8192))
    rows = []
    for workers in (0, 2):
        calls = {}
        for name, kind in {"torch": TorchLoader, OURS: headrace.DataLoader}.items():
            loader: Any = kind(
                data,
                batch_sampler=PackedBatchSampler(data.lengths, 8192, window=WINDOW, **ALONE),
                collate_fn=headrace.collate_packed,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            calls[name] = functools.partial(batches_per_second, loader, data.lengths)
        rows.append(Row(f"{workers or 'no'} workers", in_turn(calls, rounds)))
    return [Table("packed batches of 8,192 tokens", "batches/s", rows, "Every token came once.")]


# -- plans and resumes -------------------------------------------------------------------------------------------------


def shapes_planned(lengths: Lengths) -> float:
    """Returns the seconds in which four lengths to pad to are chosen."""
    began = time.perf_counter()
    best_lengths(counts_of(lengths, int(lengths.max())), 4)
    return time.perf_counter() - began


def resumed(lengths: Lengths, options: dict[str, Any]) -> float:
    """Returns the seconds from a state in the middle of a window to its next batch, which is checked."""
    sampler = PackedBatchSampler(lengths, 8192, **options, **ALONE)
    iterator = iter(sampler)
    for _ in range(200):
        next(iterator)
    state = sampler.state_dict()
    expected: Any = next(iterator)
    again = PackedBatchSampler(lengths, 8192, **options, **ALONE)
    began = time.perf_counter()
    again.load_state_dict(state)
    found: Any = next(iter(again))
    seconds = time.perf_counter() - began
    if found.packs != expected.packs:
        fail("the batch behind a resume is another one")
    return seconds


def plans(lengths: int, rounds: int) -> list[Table]:
    """Returns what plans take, and how near to the best the padding of four shapes is."""
    many = np.resize(drawn(lengths // 10, 32768), lengths)
    few = drawn(min(lengths, 100_000), 8192)
    calls = {
        f"four shapes for {lengths:,} lengths": functools.partial(shapes_planned, many),
        "a resume in the middle of a window": functools.partial(resumed, few, {}),
        'the same with balance="attention"': functools.partial(resumed, few, {"balance": "attention"}),
    }
    rows = [Row(title, {OURS: seconds}) for title, seconds in in_turn(calls, rounds).items()]

    sampler = MaxTokensBatchSampler(few, 65536, shapes=4, **ALONE)
    taken = sum(batch.shape[0] * batch.shape[1] for batch in islice(sampler, None))  # type: ignore[attr-defined]
    chosen = np.array(sampler.rows)
    best = int(chosen[np.searchsorted(chosen, few)].sum())
    note = (
        f"Batches of at most 65,536 tokens in four shapes take {100 * (taken / best - 1):.2f} % more than the same "
        f"documents, each padded to the next of the best four lengths."
    )
    return [Table("plans", "s", rows, "The batch behind a resume was compared.", better="less", notes=[note])]
