"""Keys as arrays: the same keys as the samplers' own code yields, and the same numbers drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from headrace.samplers import (
    BlockShuffleSampler,
    ClassBalancedSampler,
    DistributedSampler,
    MixtureSampler,
    PositionalSampler,
    WeightedSampler,
)
from headrace.samplers import key_arrays as module
from headrace.samplers.key_arrays import key_arrays

State = tuple[list[int], list[int] | None]
Make = Callable[[], BatchSampler]

lengths, sizes = st.integers(0, 40), st.integers(1, 9)


def generators(batches: BatchSampler) -> State:
    """The states of torch's global generator, and of the sampler's own."""
    own = getattr(batches.sampler, "generator", None)
    return torch.get_rng_state().tolist(), None if own is None else own.get_state().tolist()


def as_arrays(batches: BatchSampler) -> Iterator[Any]:
    iterator = key_arrays(batches)
    assert iterator is not None
    return iterator


def drawn(make: Make, begin: Callable[[BatchSampler], Iterator[Any]]) -> list[tuple[list[int], State]]:
    """Each batch with the generators' states after it; the last entry is the end of the epoch."""
    torch.manual_seed(11)
    batches = make()
    iterator = begin(batches)
    seen: list[tuple[list[int], State]] = [([], generators(batches))]
    for keys in iterator:
        seen.append((list(map(int, keys)), generators(batches)))
    return [*seen, ([], generators(batches))]


def broken_off(make: Make, begin: Callable[[BatchSampler], Iterator[Any]], stop: int) -> tuple[list[list[int]], State]:
    """Some batches; then the iteration ends, and another one begins with the generators as they were left."""
    torch.manual_seed(11)
    batches = make()
    iterator = begin(batches)
    head = [list(map(int, keys)) for keys in islice(iterator, stop)]
    del iterator
    return head + [list(map(int, keys)) for keys in begin(batches)], generators(batches)


def assert_as_torch(make: Make, stop: int = 2) -> None:
    assert drawn(make, as_arrays) == drawn(make, iter)
    assert broken_off(make, as_arrays, stop) == broken_off(make, iter, stop)


def random_sampler(length: int, count: int | None, own: bool) -> RandomSampler:
    generator = torch.Generator().manual_seed(3) if own else None
    return RandomSampler(range(length), num_samples=count, generator=generator)


@given(length=lengths, size=sizes, drop_last=st.booleans())
def test_the_keys_of_a_sequential_sampler_are_the_same(length: int, size: int, drop_last: bool) -> None:
    assert_as_torch(lambda: BatchSampler(SequentialSampler(range(length)), size, drop_last))


@pytest.mark.parametrize("length", [7, 8, 9, 16, 20])
@pytest.mark.parametrize("size", [1, 3, 8, 30])
def test_chunks_of_a_sequential_sampler_join_without_a_seam(
    length: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)
    assert_as_torch(lambda: BatchSampler(SequentialSampler(range(length)), size, False))


@pytest.mark.thorough
@settings(deadline=None)
@given(
    length=st.integers(1, 40),
    count=st.none() | st.integers(1, 100),
    size=sizes,
    drop_last=st.booleans(),
    own=st.booleans(),
    stop=sizes,
)
def test_the_keys_of_a_random_sampler_are_the_same_and_so_are_its_generators_after_each_batch(
    length: int, count: int | None, size: int, drop_last: bool, own: bool, stop: int
) -> None:
    assert_as_torch(lambda: BatchSampler(random_sampler(length, count, own), size, drop_last), stop)


def test_the_global_generator_may_be_the_sampler_s_own() -> None:
    def make() -> BatchSampler:
        return BatchSampler(RandomSampler(range(10), num_samples=25, generator=torch.default_generator), 4, False)

    assert_as_torch(make, 3)


def test_nothing_is_drawn_before_the_first_batch_is_asked_for() -> None:
    batches = BatchSampler(random_sampler(10, None, own=True), 4, False)
    before = generators(batches)
    iterator = as_arrays(batches)
    assert generators(batches) == before
    next(iterator)
    assert generators(batches) != before


def test_batches_are_arrays_of_whole_numbers() -> None:
    samplers = (SequentialSampler(range(10)), random_sampler(10, None, own=False), DistributedSampler(10))
    for sampler in samplers:
        for keys in as_arrays(BatchSampler(sampler, 4, False)):
            assert isinstance(keys, np.ndarray)
            assert keys.dtype == np.int64
            assert keys.ndim == 1


def test_batches_that_are_kept_do_not_change() -> None:
    batches = BatchSampler(DistributedSampler(50, seed=3), 4, False)
    kept = list(as_arrays(batches))
    before = [keys.tolist() for keys in kept]
    list(as_arrays(batches))
    assert [keys.tolist() for keys in kept] == before


class Backwards(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source) - 1, -1, -1))


class Even(DistributedSampler):
    def __iter__(self) -> Iterator[int]:
        return (key for key in super().__iter__() if key % 2 == 0)


class Pairs(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    "batches",
    [
        BatchSampler(Backwards(range(9)), 2, False),
        BatchSampler(RandomSampler(range(9), replacement=True), 2, False),
        BatchSampler(WeightedRandomSampler([1.0, 2.0], 9), 2, False),
        BatchSampler([3, 1, 2], 2, False),
        Pairs(SequentialSampler(range(9)), 2, False),
        [[0, 1], [2]],
    ],
    ids=["subclass", "replacement", "weighted", "list", "batch sampler", "list of batches"],
)
def test_samplers_whose_code_is_not_known_are_left_alone(batches: Any) -> None:
    assert key_arrays(batches) is None


def test_a_sampler_of_ours_with_an_order_of_the_user_s_keeps_that_order() -> None:
    batches = BatchSampler(Even(20, seed=1), 3, False)
    replaced = key_arrays(batches)
    assert replaced is None or [keys.tolist() for keys in replaced] == list(batches)


# -- our own samplers ------------------------------------------------------------------------------------------------

LABELS = [number % 3 for number in range(50)]
OURS: dict[str, Callable[..., PositionalSampler]] = {
    "distributed": lambda **more: DistributedSampler(50, seed=5, **more),
    "in order": lambda **more: DistributedSampler(50, shuffle=False, **more),
    "empty": lambda **more: DistributedSampler(0, **more),
    "blocks": lambda **more: BlockShuffleSampler([20, 20, 10], 2, seed=5, **more),
    "weighted": lambda **more: WeightedSampler([1.0, 2.0, 3.0] * 10, 50, seed=5, **more),
    "balanced": lambda **more: ClassBalancedSampler(LABELS, 50, seed=5, **more),
}


def walked(sampler: PositionalSampler, size: int, drop_last: bool, arrays: bool) -> list[Any]:
    """Each batch with the sampler's state after it, and the state at the end.

    A loop over single keys has seen the end by the time that a last, smaller batch is there; arrays know it later.
    """
    batches = BatchSampler(sampler, size, drop_last)
    iterator = as_arrays(batches) if arrays else iter(batches)
    seen: list[Any] = [(list(map(int, keys)), plain(sampler)) for keys in iterator]
    if seen and len(seen[-1][0]) < size:
        seen[-1] = (seen[-1][0], "")
    return [*seen, plain(sampler)]


def plain(sampler: PositionalSampler) -> str:
    return repr(sampler.state_dict())


@pytest.mark.parametrize("name", OURS)
@settings(deadline=None)
@given(size=sizes, drop_last=st.booleans(), ranks=st.integers(1, 4), data=st.data())
def test_our_own_samplers_give_the_same_keys_and_states(
    name: str, size: int, drop_last: bool, ranks: int, data: st.DataObject
) -> None:
    options: dict[str, Any] = {
        "rank": data.draw(st.integers(0, ranks - 1)),
        "world_size": ranks,
        "uneven": data.draw(st.sampled_from(["pad", "drop", "keep"])),
    }
    both = []
    for arrays in (False, True):
        sampler = OURS[name](**options)
        sampler.set_epoch(2)
        first = walked(sampler, size, drop_last, arrays)
        sampler.set_epoch(3)
        both.append((first, walked(sampler, size, drop_last, arrays)))
    assert both[1] == both[0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in OURS if name != "empty"])
@pytest.mark.parametrize("saved_by_arrays", [False, True])
@settings(deadline=None)
@given(size=sizes, stop=st.integers(0, 4), ranks=st.integers(1, 2))
def test_an_epoch_goes_on_in_the_middle_whichever_way_it_was_begun(
    name: str, saved_by_arrays: bool, size: int, stop: int, ranks: int
) -> None:
    begun = OURS[name](rank=0, world_size=ranks)
    batches = BatchSampler(begun, size, False)
    whole = [list(map(int, keys)) for keys in BatchSampler(OURS[name](rank=0, world_size=ranks), size, False)]
    iterator = as_arrays(batches) if saved_by_arrays else iter(batches)
    head = [list(map(int, keys)) for keys in islice(iterator, stop)]
    state = begun.state_dict()
    for arrays in (False, True):
        resumed = OURS[name](rank=0, world_size=ranks)
        resumed.load_state_dict(state)
        rest = walked(resumed, size, False, arrays)[:-1]
        assert head + [keys for keys, _ in rest] == whole


def test_long_epochs_of_ours_join_without_a_seam() -> None:
    for size in (1000, 20_000):
        batches = BatchSampler(DistributedSampler(50_000, seed=1), size, False)
        assert [keys.tolist() for keys in as_arrays(batches)] == list(batches)


def test_weights_that_change_in_the_middle_hold_from_the_next_batch_on() -> None:
    def run(begin: Callable[[BatchSampler], Iterator[Any]]) -> list[list[int]]:
        sampler = MixtureSampler([100, 100], [1, 1], shuffle=False)
        batches = BatchSampler(sampler, 4, False)
        iterator = begin(batches)
        head = [list(map(int, keys)) for keys in islice(iterator, 2)]
        sampler.set_weights([1, 0])
        return head + [list(map(int, keys)) for keys in islice(iterator, 3)]

    expected = run(iter)
    assert all(key < 100 for keys in expected[2:] for key in keys)
    replaced = key_arrays(BatchSampler(MixtureSampler([100, 100], [1, 1]), 4, False))
    assert replaced is None or run(as_arrays) == expected
