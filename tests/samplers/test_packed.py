"""Documents packed to a budget: every token once, the same packs on any number of ranks, and bad input."""

from __future__ import annotations

import pickle
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import StateError, UsageError
from headrace.samplers import PackedBatch, PackedBatchSampler
from headrace.samplers.packed_batch import with_others
from headrace.samplers.windowed import shuffled_in_groups
from tests.samplers.makers import ALONE

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 5000), 1, 256).astype(np.int32)

KINDS: dict[str, dict[str, Any]] = {
    "first": {"fit": "first", "packs": 3},
    "split": {"fit": "split", "packs": 2},
    "tokens": {"balance": "tokens", "packs": 4},
    "function": {"balance": lambda lengths: 2.0 * lengths + 1},
    "attention": {"balance": "attention"},
    "shapes": {"shapes": 3, "packs": 2},
    "best": {},
}

every_kind = pytest.mark.parametrize("kind", KINDS)


def tokens_of(batches: list[PackedBatch]) -> dict[int, list[tuple[int, int]]]:
    """Which tokens of each document come, sorted."""
    parts = defaultdict(list)
    for batch in batches:
        for pack in batch.packs:
            for key, start, stop in pack:
                parts[key].append((start, stop))
    return {key: sorted(found) for key, found in parts.items()}


def assert_each_token_comes_once(batches: list[PackedBatch], lengths: npt.NDArray[Any]) -> None:
    parts = tokens_of(batches)
    assert sorted(parts) == list(range(len(lengths)))
    for key, found in parts.items():
        assert found[0][0] == 0
        assert found[-1][1] == lengths[key]
        assert all(before[1] == after[0] for before, after in pairwise(found))


def global_batches(ranks: int, **options: Any) -> list[list[Any]]:
    """What all ranks get together, step by step."""
    samplers = [PackedBatchSampler(LENGTHS, 256, rank=rank, world_size=ranks, **options) for rank in range(ranks)]
    steps = zip(*samplers, strict=True)
    return [batch.packs for step in steps for batch in step]


@given(
    lengths=st.lists(st.integers(0, 60), max_size=60),
    budget=st.integers(1, 40),
    packs=st.integers(1, 4),
    fit=st.sampled_from(["best", "first", "split"]),
    balance=st.sampled_from([None, "tokens", "attention"]),
    window=st.integers(1, 40),
    shapes=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(deadline=None)
def test_every_token_comes_once_within_the_budget(lengths: list[int], budget: int, fit: Any, **options: Any) -> None:
    if fit != "split":
        lengths = [min(length, budget) for length in lengths]
    sampler = PackedBatchSampler(lengths, budget, fit=fit, **options, **ALONE)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert_each_token_comes_once(batches, np.array(lengths, np.int64))
    for batch in batches:
        packs = batch.packs
        assert [key for pack in packs for key, _, _ in pack] == batch
        assert len(packs) == options["packs"]
        assert batch.shape == (options["packs"], batch.shape[1])
        assert max(sum(stop - start for _, start, stop in pack) for pack in packs) <= batch.shape[1] <= budget
    assert len({batch.shape for batch in batches}) <= options["shapes"]


@every_kind
@pytest.mark.quick
def test_the_ranks_get_the_same_batches_together_whatever_their_number(kind: str) -> None:
    alone = global_batches(1, uneven="drop", **KINDS[kind])
    for ranks in (2, 8, 64):
        batches = global_batches(ranks, uneven="drop", **KINDS[kind])
        assert batches == alone[: len(alone) // ranks * ranks]


@every_kind
@pytest.mark.quick
def test_a_resume_in_mid_window_on_other_ranks_goes_on_with_the_next_batch(kind: str) -> None:
    options = {"window": 1500, "uneven": "keep", **KINDS[kind]}
    alone = [batch.packs for batch in PackedBatchSampler(LENGTHS, 256, **options, **ALONE)]
    two = [PackedBatchSampler(LENGTHS, 256, rank=rank, world_size=2, **options) for rank in range(2)]
    steps = [iter(sampler) for sampler in two]
    done = len(alone) // 4
    for _ in range(done):
        for step in steps:
            next(step)
    state = two[0].state_dict()
    assert state == two[1].state_dict()

    rest = []
    for rank in range(3):
        sampler = PackedBatchSampler(LENGTHS, 256, rank=rank, world_size=3, **options)
        sampler.load_state_dict(pickle.loads(pickle.dumps(state)))
        rest.append([batch.packs for batch in sampler])
    assert [part[step] for step in range(len(rest[0])) for part in rest if step < len(part)] == alone[2 * done :]


def test_a_state_of_another_plan_is_refused() -> None:
    state = PackedBatchSampler(LENGTHS, 256, **ALONE).state_dict()
    others = [
        PackedBatchSampler(LENGTHS, 257, **ALONE),
        PackedBatchSampler(LENGTHS, 256, fit="first", **ALONE),
        PackedBatchSampler(LENGTHS, 256, balance="tokens", **ALONE),
        PackedBatchSampler(LENGTHS[::-1], 256, **ALONE),
        PackedBatchSampler(LENGTHS, 256, packs=2, **ALONE),
        PackedBatchSampler(LENGTHS, 256, window=100, **ALONE),
    ]
    for other in others:
        with pytest.raises(StateError, match="belongs to another sampler"):
            other.load_state_dict(state)


def test_epochs_differ_and_so_do_seeds() -> None:
    sampler = PackedBatchSampler(LENGTHS, 256, **ALONE)
    first = [batch.packs for batch in sampler]
    sampler.set_epoch(1)
    assert [batch.packs for batch in sampler] != first
    assert [batch.packs for batch in PackedBatchSampler(LENGTHS, 256, seed=1, **ALONE)] != first
    sampler.set_epoch(0)
    assert [batch.packs for batch in sampler] == first


@pytest.mark.parametrize("balance, least", [("attention", 1.1), ("tokens", 1.02)])
@pytest.mark.quick
def test_ranks_get_packs_of_like_cost(balance: Any, least: float) -> None:
    """Over 64 ranks, four batches each: the most of a rank is at most so much above the mean, on average."""
    lengths = np.clip(np.random.default_rng(1).lognormal(6, 1, 60_000), 1, 8192).astype(np.int32)
    sampler = PackedBatchSampler(lengths, 8192, balance=balance, **ALONE)
    costs = []
    for batch in sampler:
        sizes = batch.pieces.stops - batch.pieces.starts
        if balance == "attention":
            sizes = sizes**2
        costs.append(int(sizes.sum()))
    steps = np.array(costs[: len(costs) // 256 * 256]).reshape(-1, 4, 64).sum(axis=1)
    assert (steps.max(axis=1) / steps.mean(axis=1)).mean() <= least


@pytest.mark.parametrize("ranks", [2, 4, 32, 64])
def test_the_rank_with_the_costliest_of_its_neighbours_gets_the_least_costly_next(ranks: int) -> None:
    order = shuffled_in_groups(1024, 128, stream=5)
    steps = order.reshape(-1, 2, ranks)
    assert (steps.sum(axis=1) == steps.sum(axis=1)[:, :1]).all()
    assert len({tuple(step.argsort()) for step in steps[:, 0]}) > 1
    assert sorted(order.tolist()) == list(range(1024))


def test_several_budgets_hold_at_once() -> None:
    generator = np.random.default_rng(0)
    lengths = {"tokens": generator.integers(1, 100, 500), "patches": generator.integers(0, 5, 500) * 16}
    batches = list(PackedBatchSampler(lengths, {"tokens": 256, "patches": 128}, **ALONE))
    assert_each_token_comes_once(batches, lengths["tokens"])
    for batch in batches:
        assert lengths["tokens"][batch].sum() <= 256
        assert lengths["patches"][batch].sum() <= 128


def test_a_cost_of_several_budgets_is_asked_with_their_names() -> None:
    asked = []

    def cost(lengths: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        asked.append({name: sorted(column.tolist()) for name, column in lengths.items()})
        return lengths["tokens"] + lengths["patches"]

    lengths = {"tokens": [3, 4], "patches": [5, 6]}
    next(iter(PackedBatchSampler(lengths, {"tokens": 8, "patches": 8}, balance=cost, **ALONE)))
    # For the state, and for the window.
    assert asked == 2 * [{"tokens": [3, 4], "patches": [5, 6]}]


def test_documents_that_are_too_long_are_cut_or_left_out_and_counted() -> None:
    lengths = [5, 30, 7, 11]
    cut = PackedBatchSampler(lengths, 10, too_long="cut", **ALONE)
    assert cut.too_long_count == 2
    assert tokens_of(list(cut)) == {0: [(0, 5)], 1: [(0, 10)], 2: [(0, 7)], 3: [(0, 10)]}
    left = PackedBatchSampler(lengths, 10, too_long="skip", **ALONE)
    assert left.too_long_count == 2
    assert sorted(tokens_of(list(left))) == [0, 2]
    assert list(PackedBatchSampler([30, 40], 10, too_long="skip", **ALONE)) == []
    split = PackedBatchSampler(lengths, 10, fit="split", **ALONE)
    assert split.too_long_count == 0
    assert sorted(tokens_of(list(split))) == [0, 1, 2, 3]


def test_without_shuffle_first_fit_and_split_follow_the_dataset() -> None:
    first = PackedBatchSampler([4, 4, 4, 2], 8, fit="first", shuffle=False, **ALONE)
    assert [batch.packs for batch in first] == [[[(0, 0, 4), (1, 0, 4)]], [[(2, 0, 4), (3, 0, 2)]]]
    split = PackedBatchSampler([4, 6, 5], 8, fit="split", shuffle=False, **ALONE)
    assert [batch.packs for batch in split] == [[[(0, 0, 4), (1, 0, 4)]], [[(1, 4, 6), (2, 0, 5)]]]


def test_shapes_pad_the_packs_as_little_as_any_lengths_would() -> None:
    """Documents above half the budget have a pack each, so that packs are as long as documents."""
    lengths = np.random.default_rng(0).integers(51, 101, 2000)
    sampler = PackedBatchSampler(lengths, 100, shapes=4, **ALONE)
    assert len(sampler.rows) == 4
    rows = sum(batch.shape[1] for batch in sampler)
    # An equal number of each length: the best shapes are those at equal distances.
    even = np.array([63, 75, 88, 100])
    assert rows <= even[np.searchsorted(even, lengths)].sum() * 1.01


def test_a_batch_keeps_its_packs_on_the_way_to_a_worker() -> None:
    batch = next(iter(PackedBatchSampler(LENGTHS, 256, packs=2, **ALONE)))
    copy = pickle.loads(pickle.dumps(batch))
    assert copy == batch
    assert copy.packs == batch.packs
    assert copy.shape == batch.shape
    assert copy.positions.tolist() == batch.positions.tolist()


def test_of_another_document_in_the_place_of_one_the_same_tokens_come() -> None:
    batch = next(iter(PackedBatchSampler([4, 6, 5, 9], 8, packs=2, fit="split", shuffle=False, **ALONE)))
    assert batch.packs == [[(0, 0, 4), (1, 0, 4)], [(1, 4, 6), (2, 0, 5), (3, 0, 1)]]
    others = with_others(batch, [0, 2, 4], [0, 7, 3])
    assert others.packs == [[(0, 0, 4)], [(7, 4, 6), (3, 0, 1)]]
    assert with_others(others, [], []).packs == [[], []]


LENGTHS_OF_ANY_KIND = {
    "tensor": torch.tensor([4, 6, 5]),
    "unsigned": np.array([4, 6, 5], np.uint16),
    "list": [4, 6, 5],
}


@pytest.mark.parametrize("kind", LENGTHS_OF_ANY_KIND)
@pytest.mark.quick
def test_lengths_may_be_of_any_whole_type(kind: str) -> None:
    batches = list(PackedBatchSampler(LENGTHS_OF_ANY_KIND[kind], 10, **ALONE))
    assert_each_token_comes_once(batches, np.array([4, 6, 5]))


@pytest.mark.parametrize(
    "lengths, found",
    [
        ([3, -1], "-1 at index 1"),
        ([3.5, 1.0], "float64 of shape (2,)"),
        ([3.0, float("nan")], "float64 of shape (2,)"),
        ([3, None], "object of shape (2,)"),
        ([[3, 1]], "int64 of shape (1, 2)"),
        (["a"], "of shape (1,)"),
        ([[3], [1, 2]], "list"),
    ],
)
@pytest.mark.quick
def test_lengths_that_are_none_are_an_error(lengths: Any, found: str) -> None:
    with pytest.raises(UsageError, match="cannot pack by these lengths") as caught:
        PackedBatchSampler(lengths, 10)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    "budget, lengths, options, said",
    [
        (0, [1], {}, "budget"),
        (-3, [1], {}, "budget"),
        (2.5, [1], {}, "budget"),
        ({}, [1], {}, "budget"),
        ({"tokens": 0}, [1], {}, "budget"),
        (8, [1], {"packs": 0}, "packs"),
        (8, [1], {"window": 0}, "window"),
        (8, [1], {"shapes": 0}, "shapes"),
        (8, [1], {"seed": "x"}, "seed="),
        (8, [1], {"seed": 1.5}, "a whole number"),
        (8, [1], {"fit": "worst"}, "'best', 'first' or 'split'"),
        (8, [1], {"balance": "flops"}, "'tokens', 'attention'"),
        (8, [1], {"too_long": "drop"}, "'raise', 'cut' or 'skip'"),
        ({"a": 8, "b": 8}, {"a": [1], "b": [1]}, {"fit": "split"}, "'best' or 'first'"),
        ({"a": 8, "b": 8}, {"a": [1], "b": [1]}, {"too_long": "cut"}, "'raise' or 'skip'"),
        ({"a": 8, "b": 8}, {"a": [1]}, {}, "lengths for 'a', 'b'"),
        ({"a": 8, "b": 8}, {"a": [1], "b": [1, 2]}, {}, "1 of 'a', 2 of 'b'"),
        (8, [5, 9, 12], {}, "key 2"),
        (1 << 70, [1], {}, "at most 1,099,511,627,776"),
        (1 << 29, [1], {"shapes": 2}, "1, where the budget is above 16,777,216"),
        (8, np.array([1 << 63], np.uint64), {}, "9,223,372,036,854,775,808 at index 0"),
        (1 << 20, np.full(4, 1 << 62), {"fit": "split"}, "4,611,686,018,427,387,904 at index 0"),
        (8, [1], {"fit": ["best"]}, "'best', 'first' or 'split'"),
        ({"a": 8, "b": 8}, {"a": [1, 2], "b": [9, 1]}, {}, "key 0"),
    ],
)
@pytest.mark.quick
def test_wrong_arguments_are_named(budget: Any, lengths: Any, options: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        PackedBatchSampler(lengths, budget, **options)
    assert said in str(caught.value)


def test_a_state_tells_functions_by_their_costs() -> None:
    def sampler(power: float, factor: float = 1.0) -> PackedBatchSampler:
        return PackedBatchSampler(LENGTHS, 256, balance=lambda lengths: factor * lengths**power, **ALONE)

    state = sampler(1.5).state_dict()
    sampler(1.5, 1 / 3).load_state_dict(state)
    for other in (sampler(2.0), sampler(0.0), PackedBatchSampler(LENGTHS, 256, balance="attention", **ALONE)):
        with pytest.raises(StateError, match="belongs to another sampler"):
            other.load_state_dict(state)


def test_functions_are_told_apart_by_all_documents_also_if_the_first_are_alike() -> None:
    lengths = np.append(np.full(3000, 8), np.arange(8, 250))
    first, other = (
        PackedBatchSampler(lengths, 256, balance=lambda some, power=power: (some / 8.0) ** power, **ALONE)
        for power in (1.5, 3.0)
    )
    with pytest.raises(StateError, match="belongs to another sampler"):
        other.load_state_dict(first.state_dict())


def test_a_function_that_gives_no_cost_for_each_document_is_an_error() -> None:
    with pytest.raises(UsageError, match="balance"):
        list(PackedBatchSampler([3, 4], 8, balance=lambda lengths: lengths.sum(), **ALONE))
    with pytest.raises(UsageError, match="balance"):
        list(PackedBatchSampler([3, 4], 8, balance=lambda lengths: lengths * float("nan"), **ALONE))
    sizes = {"tokens": [3, 4, 5], "patches": [1, 0, 2]}
    budgets = {"tokens": 8, "patches": 8}
    with pytest.raises(UsageError, match=r"found: +a function that returned inf at index 1, for 4 tokens, 0 patches"):
        list(PackedBatchSampler(sizes, budgets, balance=lambda some: [1, float("inf"), 2], **ALONE))


def test_a_loader_plans_no_more_windows_than_it_reads() -> None:
    class Counting(PackedBatchSampler):
        planned = 0

        def _plan(self, *arguments: Any) -> Any:
            self.planned += 1
            return super()._plan(*arguments)

    lengths = np.broadcast_to(np.int32(100), 50_000)
    sampler = Counting(lengths, 1000, window=1000, **ALONE)
    loader = headrace.DataLoader(range(50_000), batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        for _ in range(150):
            assert len(next(batches)) == 10
        loader.load_state_dict(loader.state_dict())
        assert len(next(iter(loader))) == 10
    assert sampler.planned == 2 * 3
