"""Batches of similar length."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import UsageError
from headrace.samplers import DistributedSampler, LengthBucketBatchSampler, MaxTokensBatchSampler
from headrace.samplers.windowed import WindowedBatchSampler
from tests.samplers.makers import ALONE, LENGTHS

some_lengths = st.lists(st.integers(0, 50), min_size=1, max_size=150)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The windows that were cut, in the order in which they were."""
    numbers: list[int] = []
    cut = WindowedBatchSampler._window

    def counting(self: Any, epoch: int, number: int) -> Any:
        numbers.append(number)
        return cut(self, epoch, number)

    monkeypatch.setattr(WindowedBatchSampler, "_window", counting)
    return numbers


@given(lengths=some_lengths, size=st.integers(1, 9), drop_last=st.booleans(), seed=st.integers(0, 9))
@settings(deadline=None)
def test_batches_of_a_size_hold_every_sample_once(lengths: list[int], size: int, drop_last: bool, seed: int) -> None:
    sampler = LengthBucketBatchSampler(lengths, size, window=20, drop_last=drop_last, seed=seed, **ALONE)
    batches = list(sampler)
    keys = [key for batch in batches for key in batch]
    assert len(set(keys)) == len(keys)
    if drop_last:
        assert all(len(batch) == size for batch in batches)
        assert len(keys) == len(lengths) // size * size
    else:
        assert sorted(keys) == list(range(len(lengths)))
        assert all(len(batch) == size for batch in batches[:-1])


def test_lengths_within_a_batch_are_neighbours_in_the_window() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 1024)
    batches = list(LengthBucketBatchSampler(lengths, 16, window=1024, **ALONE))
    ranges = sorted((min(lengths[batch]), max(lengths[batch])) for batch in batches)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def test_batches_come_in_random_order() -> None:
    sampler = LengthBucketBatchSampler(np.arange(1024), 16, window=1024, **ALONE)
    correlations = []
    for epoch in range(200):
        sampler.set_epoch(epoch)
        longest = [max(batch) for batch in sampler]
        correlations.append(np.corrcoef(longest, np.arange(64))[0, 1])
    assert abs(np.mean(correlations)) < 0.1
    assert len(set(correlations)) > 150


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_in_each_step_ranks_get_batches_of_neighbouring_lengths(ranks: int) -> None:
    """Also in the last window, as far as whole groups reach."""
    length, size = 64 * 16 + 40 * 16 + 5, 16
    whole = list(LengthBucketBatchSampler(np.arange(length), size, **ALONE))
    assert len(whole[-1]) == 5
    each = [
        list(LengthBucketBatchSampler(np.arange(length), size, rank=rank, world_size=ranks)) for rank in range(ranks)
    ]
    first = set()
    order = sorted(max(batch) for batch in whole[:64])
    for step in list(zip(*each, strict=True))[: 64 // ranks]:
        places = [order.index(max(batch)) for batch in step]
        assert max(places) - min(places) == ranks - 1
        first.add(places[0] % ranks)
    assert len(first) > 1  # no rank always gets the longest


def test_without_shuffling_windows_are_those_of_the_data_set() -> None:
    batches = list(LengthBucketBatchSampler([1, 5, 3, 4, 9, 0, 2], 2, window=4, shuffle=False, **ALONE))
    assert batches == [[1, 3], [2, 0], [4, 6], [5]]


@pytest.mark.parametrize("drop_last", [True, False])
def test_what_drop_last_leaves_out_has_nothing_to_do_with_its_length(drop_last: bool) -> None:
    left_out = set()
    for seed in range(60):
        sampler = LengthBucketBatchSampler(np.arange(10), 3, drop_last=drop_last, seed=seed, **ALONE)
        left_out |= set(range(10)) - {key for batch in sampler for key in batch}
    assert left_out == (set(range(10)) if drop_last else set())


@given(
    lengths=some_lengths, limit=st.integers(50, 200), samples=st.none() | st.integers(1, 5), window=st.integers(1, 80)
)
@settings(deadline=None)
def test_no_batch_has_more_tokens_than_allowed(
    lengths: list[int], limit: int, samples: int | None, window: int
) -> None:
    batches = list(MaxTokensBatchSampler(lengths, limit, max_samples=samples, window=window, **ALONE))
    assert all(len(batch) * max(lengths[key] for key in batch) <= limit for batch in batches)
    assert samples is None or all(len(batch) <= samples for batch in batches)
    assert sorted(key for batch in batches for key in batch) == list(range(len(lengths)))


def test_batches_are_as_full_as_they_can_be() -> None:
    """Only the last batch that is cut from a window could have taken the longest sample of another."""
    batches = list(MaxTokensBatchSampler(LENGTHS, 240, window=len(LENGTHS), **ALONE))
    batches.sort(key=lambda batch: (max(LENGTHS[batch]), min(LENGTHS[batch])), reverse=True)
    assert all((len(batch) + 1) * max(LENGTHS[batch]) > 240 for batch in batches[:-1])


def test_a_sample_that_is_too_long_is_named() -> None:
    with pytest.raises(
        UsageError, match=r"(?s)place:.*key 1.*found:\s+99 tokens.*at most max_tokens=10.*'skip' or 'al"
    ):
        MaxTokensBatchSampler([3, 99, 4], 10)


@given(lengths=some_lengths, limit=st.integers(1, 60))
@settings(deadline=None)
def test_samples_that_are_too_long_can_be_skipped_or_go_alone(lengths: list[int], limit: int) -> None:
    long = [key for key, length in enumerate(lengths) if length > limit]
    skipping = MaxTokensBatchSampler(lengths, limit, too_long="skip", window=16, **ALONE)
    alone = MaxTokensBatchSampler(lengths, limit, too_long="alone", window=16, **ALONE)
    keys = [key for batch in skipping for key in batch]
    assert sorted(keys + long) == list(range(len(lengths)))
    batches = list(alone)
    assert sorted(key for batch in batches for key in batch) == list(range(len(lengths)))
    assert all([key] in batches for key in long)
    assert len(list(skipping)) == len(skipping)
    assert len(batches) == len(alone)


def test_if_all_samples_are_too_long_there_are_no_batches() -> None:
    sampler = MaxTokensBatchSampler([9, 9, 9], 5, too_long="skip", window=1, **ALONE)
    assert list(sampler) == []
    assert len(sampler) == 0


def test_the_first_batch_needs_one_window_only(cuts: list[int]) -> None:
    for sampler in (LengthBucketBatchSampler(LENGTHS, 4, window=64), MaxTokensBatchSampler(LENGTHS, 240, window=64)):
        cuts.clear()
        next(iter(sampler))
        assert cuts == [0]


def test_a_resumed_epoch_begins_with_the_window_where_it_stopped(cuts: list[int]) -> None:
    for sampler in (
        LengthBucketBatchSampler(LENGTHS, 4, window=64, **ALONE),
        MaxTokensBatchSampler(LENGTHS, 240, window=64, **ALONE),
    ):
        cuts.clear()
        batches = iter(sampler)
        while 11 not in cuts:
            next(batches)
        next(batches)  # windows are begun one batch ahead
        sampler.load_state_dict(sampler.state_dict())
        cuts.clear()
        next(iter(sampler))
        assert cuts == [11]


def test_batches_are_counted_once_an_epoch(cuts: list[int]) -> None:
    sampler = MaxTokensBatchSampler(LENGTHS, 240, window=64, **ALONE)
    assert len(sampler) == len(sampler)
    assert cuts == list(range(21))
    sampler.set_epoch(1)
    assert len(sampler) > 0
    assert len(cuts) == 42


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_knows_the_positions_of_its_samples(shuffle: bool) -> None:
    sampler = LengthBucketBatchSampler(np.arange(50)[::-1], 4, shuffle=shuffle, seed=3, **ALONE)
    seen = []
    for batch in sampler:
        assert isinstance(batch, list)
        assert {type(key) for key in batch} == {int}
        copy = pickle.loads(pickle.dumps(batch))
        assert (list(copy), copy.positions.tolist()) == (list(batch), batch.positions.tolist())
        seen += zip(batch.positions.tolist(), batch, strict=True)
    by_position = [key for _, key in sorted(seen)]
    assert sorted(position for position, _ in seen) == list(range(50))
    assert by_position == list(DistributedSampler(50, shuffle=shuffle, seed=3, **ALONE))


def test_lengths_may_be_tensors_or_fractions() -> None:
    expected = list(MaxTokensBatchSampler(LENGTHS, 240, **ALONE))
    for lengths in (LENGTHS.tolist(), LENGTHS.astype(np.uint8), torch.from_numpy(LENGTHS), LENGTHS.astype(np.float32)):
        sampler = MaxTokensBatchSampler(lengths, 240, **ALONE)
        assert list(sampler) == expected
        assert sampler.state_dict() == {**sampler.state_dict(), "digest": MaxTokensBatchSampler(LENGTHS, 240)._digest}
    seconds = np.asarray([0.25, 3.5, 0.5, 0.0])
    assert sorted(map(sorted, MaxTokensBatchSampler(seconds, 4, shuffle=False, **ALONE))) == [[0, 2, 3], [1]]


def test_an_array_of_lengths_is_not_copied() -> None:
    assert np.shares_memory(LengthBucketBatchSampler(LENGTHS, 4).lengths, LENGTHS)


@pytest.mark.parametrize("lengths", [[[1], [2]], [1, -2], ["a"], None, [[1], [1, 2]], [1, float("nan")]])
def test_lengths_that_are_no_row_of_numbers_are_refused(lengths: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:    lengths=.*found:.*one non-negative number for each.*fix:"):
        LengthBucketBatchSampler(lengths, 2)


@pytest.mark.parametrize(
    ("name", "value"), [("max_tokens", 0), ("max_samples", -1), ("window", 1.5), ("too_long", "drop"), ("seed", "a")]
)
def test_wrong_arguments_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        MaxTokensBatchSampler([1, 2], **{"max_tokens": 9, name: value})


def test_without_samples_there_are_no_batches() -> None:
    for sampler in (LengthBucketBatchSampler([], 2, **ALONE), MaxTokensBatchSampler([], 2, rank=1, world_size=3)):
        assert list(sampler) == []
        assert len(sampler) == 0


def shapes_of(batches: list[Any]) -> set[tuple[int, int]]:
    return {batch.shape for batch in batches}


@given(
    lengths=st.lists(st.integers(0, 50), max_size=150),
    shapes=st.integers(1, 4),
    most=st.integers(50, 200),
    max_samples=st.sampled_from([None, 3]),
    seed=st.integers(0, 9),
)
@settings(deadline=None)
def test_max_tokens_has_at_most_so_many_shapes_in_all_epochs(
    lengths: list[int], shapes: int, most: int, max_samples: int | None, seed: int
) -> None:
    sampler = MaxTokensBatchSampler(
        lengths, most, max_samples=max_samples, window=40, shapes=shapes, seed=seed, **ALONE
    )
    batches = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        of_epoch = list(sampler)
        assert sorted(key for batch in of_epoch for key in batch) == list(range(len(lengths)))
        batches += of_epoch
    assert len(shapes_of(batches)) <= shapes
    for batch in batches:
        rows, row = batch.shape
        assert rows * row <= most
        assert len(batch) <= rows
        assert [[piece] for piece in zip(batch, [0] * len(batch), [lengths[key] for key in batch], strict=True)] == [
            pack for pack in batch.packs if pack
        ]
        assert len(batch.packs) == rows


def test_buckets_of_a_size_have_few_shapes_the_last_batch_too() -> None:
    sampler = LengthBucketBatchSampler(LENGTHS, 16, shapes=4, **ALONE)
    batches = list(sampler)
    assert len(batches[-1]) < 16
    assert len(shapes_of(batches)) == 4
    assert {rows for rows, _ in shapes_of(batches)} == {16}
    assert sorted(key for batch in batches for key in batch) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("drawn", ["lognormal", "uniform"])
@pytest.mark.quick
def test_shapes_pad_little_more_than_the_best_lengths_would(drawn: str) -> None:
    """The best: each sample padded to the next of those four lengths that pad least, with no batch to fill."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 513, 50_000)
    if drawn == "lognormal":
        lengths = np.clip(generator.lognormal(5, 0.7, 50_000), 1, 2048).astype(np.int64)
    sampler = MaxTokensBatchSampler(lengths, 8192, shapes=4, **ALONE)
    assert sampler.rows is not None
    best = np.array(sampler.rows)[np.searchsorted(sampler.rows, lengths)].sum()
    taken = sum(rows * row for rows, row in (batch.shape for batch in sampler))
    assert taken <= 1.01 * best


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: MaxTokensBatchSampler([1.5, 2.0], 8, shapes=2), "whole numbers"),
        (lambda: MaxTokensBatchSampler([1, 9], 8, too_long="alone", shapes=2), "'raise' or 'skip', with shapes="),
        (lambda: MaxTokensBatchSampler([1, 2], 8, shapes=0), "shapes"),
        (lambda: LengthBucketBatchSampler([1, 1 << 30], 2, shapes=2), "1,073,741,824"),
    ],
)
@pytest.mark.quick
def test_lengths_that_have_no_shapes_are_an_error(make: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)


def test_a_compiled_model_compiles_once_for_each_shape() -> None:
    graphs: list[Any] = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=counting, dynamic=False, fullgraph=True)
    def model(tokens: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return (tokens * (documents >= 0)).sum()

    samples = [torch.full((int(length),), int(length)) for length in LENGTHS]
    sampler = MaxTokensBatchSampler(LENGTHS, 240, shapes=4, **ALONE)
    loader = headrace.DataLoader(samples, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    total = sum(int(model(batch["input_ids"], batch["document_ids"])) for batch in loader)
    assert total == (LENGTHS**2).sum()
    assert 2 <= len(graphs) <= 4
