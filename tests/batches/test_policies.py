"""What becomes of bad samples, for every kind of dataset and backend."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, Dataset, SequentialSampler, Subset

from headrace import DataLoader
from headrace.batches.odd_samples import odd_ones_out
from headrace.core.errors import SampleError, UsageError
from headrace.faults.bad_sample import BadSample
from headrace.testing import Faulty, Raise

BAD = (3, 4, 17, 32, 33, 34, 35)
GOOD = [key for key in range(40) if key not in BAD]

backends = pytest.mark.parametrize(
    "backend",
    [
        {"backend": "inline"},
        {"backend": "thread", "num_workers": 2},
        {"num_workers": 2},
        pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, marks=pytest.mark.stress),
    ],
    ids=["inline", "thread", "fork", "spawn"],
)


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor(key)


class Together(Numbers):
    def __getitems__(self, keys: list[int]) -> list[torch.Tensor]:
        return [self[key] for key in keys]


class WholeBatches(Dataset[Any]):
    """Makes batches itself; with a bad key in them it cannot."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> torch.Tensor:
        raise AssertionError("batches are made whole")

    def fetch_batch(self, keys: Any, out: Any) -> torch.Tensor:
        if bad := sorted(set(BAD) & set(np.asarray(keys).tolist())):
            raise ValueError(f"bad: {bad}")
        return torch.as_tensor(keys)


def faulty(dataset: Any = None) -> Any:
    return Faulty(dataset or Numbers(), {key: Raise(ValueError("bad")) for key in BAD})


KINDS = {"items": lambda: faulty(), "together": lambda: faulty(Together()), "whole": WholeBatches}
kinds = pytest.mark.parametrize("kind", list(KINDS))


def keys_of(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@kinds
@backends
def test_replace_keeps_every_batch_full_and_every_good_sample_in_its_place(kind: str, backend: Any) -> None:
    loader = DataLoader(KINDS[kind](), 4, on_error="replace", seed=5, **backend)
    batches = keys_of(loader)
    flat = [key for batch in batches for key in batch]
    assert [len(batch) for batch in batches] == [4] * 10
    assert all(flat[key] == key for key in GOOD)
    records = {record.key: record.replacement for record in loader.faults.records}
    assert records == {key: flat[key] for key in BAD}
    assert not set(records.values()) & set(BAD)
    assert batches == keys_of(DataLoader(KINDS[kind](), 4, on_error="replace", seed=5))  # the same for any backend


@kinds
@backends
def test_skip_shortens_batches_and_leaves_none_empty(kind: str, backend: Any) -> None:
    loader = DataLoader(KINDS[kind](), 4, on_error="skip", **backend)
    batches = keys_of(loader)
    assert [len(batch) for batch in batches] == [3, 3, 4, 4, 3, 4, 4, 4, 1, 4]
    (instead,) = batches.pop(8)
    assert instead in GOOD
    assert [key for batch in batches for key in batch] == GOOD
    assert (loader.faults.skipped, loader.faults.replaced) == (6, 1)


@kinds
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
@given(
    bad=st.sets(st.integers(0, 39), max_size=25),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    seed=st.none() | st.integers(0, 3),
)
@settings(max_examples=25, deadline=None)
def test_the_number_of_batches_never_depends_on_what_is_bad(
    kind: str, policy: Any, bad: set[int], batch_size: int, drop_last: bool, seed: int | None
) -> None:
    dataset: Any = Numbers() if kind == "items" else Together() if kind == "together" else Mosaic(bad)
    if kind != "whole":
        dataset = Faulty(dataset, {key: Raise(ValueError("bad")) for key in bad})
    loader = DataLoader(dataset, batch_size, on_error=policy, drop_last=drop_last, seed=seed, shuffle=True)
    expected = len(loader)
    if policy == "raise":
        bad_batches, iterator = 0, iter(loader)
        for _ in range(expected):
            try:
                next(iterator)
            except ValueError:
                bad_batches += 1
        assert bad_batches <= len(bad)
        return
    batches = keys_of(loader)
    assert len(batches) == expected
    assert all(batches)
    assert not {key for batch in batches for key in batch} & bad
    if policy == "replace":
        assert all(len(batch) == batch_size for batch in batches[:-1])


class Mosaic(WholeBatches):
    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def fetch_batch(self, keys: Any, out: Any) -> torch.Tensor:
        if self.bad & set(np.asarray(keys).tolist()):
            raise ValueError("bad")
        return torch.as_tensor(keys)


def test_a_function_decides_and_sees_the_exception() -> None:
    seen: list[BadSample] = []

    def decide(bad: BadSample) -> Any:
        seen.append(bad)
        return "raise" if bad.key == 17 else "skip"

    iterator = iter(DataLoader(faulty(), 4, on_error=decide))
    assert keys_of([next(iterator) for _ in range(4)]) == [[0, 1, 2], [5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    with pytest.raises(ValueError, match="bad") as caught:
        next(iterator)
    assert "raised while loading the sample with key 17" in caught.value.__notes__[0]
    assert [bad.key for bad in seen] == [3, 4, 17]
    assert all(isinstance(bad.exception, ValueError) for bad in seen)


def test_a_function_that_says_nothing_is_named() -> None:
    with pytest.raises(UsageError, match="on_error must say what to do"):
        list(DataLoader(faulty(), 4, on_error=lambda bad: None))  # type: ignore[arg-type,return-value]


@backends
@pytest.mark.parametrize(
    "error",
    [MemoryError("full"), OSError(errno.ENOSPC, "disk full"), OSError(errno.EMFILE, "too many"), NameError("x")],
    ids=lambda error: type(error).__name__ + str(getattr(error, "errno", "")),
)
def test_what_is_not_the_sample_s_fault_is_never_skipped(backend: Any, error: Exception) -> None:
    loader = DataLoader(Faulty(Numbers(), {9: Raise(error)}), 4, on_error="skip", **backend)
    with pytest.raises(type(error)):
        list(loader)
    assert loader.faults.bad == 0


@pytest.mark.parametrize("kind", ["items", "together"])
@pytest.mark.parametrize("times", [1, 3])
def test_input_that_fails_for_a_moment_is_tried_again(kind: str, times: int) -> None:
    dataset = Numbers() if kind == "items" else Together()
    flaky = Faulty(dataset, {9: Raise(ConnectionResetError("gone"))}, times=times)
    loader = DataLoader(flaky, 4, on_error="skip")
    assert [key for batch in keys_of(loader) for key in batch] == list(range(40))
    assert loader.faults.bad == 0
    assert loader.faults.retried == (1 if kind == "items" or times > 1 else 0)  # else the second look already found it


@pytest.mark.parametrize("kind", ["items", "together"])
def test_what_is_not_the_sample_s_fault_is_raised_behind_a_bad_sample_too(kind: str) -> None:
    dataset = Numbers() if kind == "items" else Together()
    mixed = Faulty(dataset, {8: Raise(ValueError("bad")), 10: Raise(MemoryError("full"))})
    with pytest.raises(MemoryError):
        list(DataLoader(mixed, 4, on_error="skip"))


@pytest.mark.thorough
def test_input_that_goes_on_failing_is_a_bad_sample() -> None:
    flaky = Faulty(Numbers(), {9: Raise(ConnectionResetError("gone"))})
    loader = DataLoader(flaky, 4, on_error="skip")
    assert [key for batch in keys_of(loader) for key in batch] == [key for key in range(40) if key != 9]
    assert flaky.attempts.of(9) == 4


def test_nothing_is_tried_again_without_a_policy() -> None:
    flaky = Faulty(Numbers(), {9: Raise(ConnectionResetError("gone"))})
    with pytest.raises(ConnectionResetError):
        list(DataLoader(flaky, 4))
    assert flaky.attempts.of(9) == 1


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_data_set_of_which_nothing_can_be_used_ends_soon(policy: Any) -> None:
    dataset = Faulty(Numbers(), {key: Raise(ValueError("all are bad")) for key in range(40)})
    with pytest.raises(SampleError, match="found no good sample for the place of a bad one") as caught:
        list(DataLoader(dataset, 4, on_error=policy))
    assert "all are bad" in str(caught.value)


@pytest.mark.parametrize("kind", ["items", "together"])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_without_batches_a_sample_is_replaced(kind: str, policy: Any) -> None:
    keys = [int(key) for key in DataLoader(KINDS[kind](), batch_size=None, on_error=policy, seed=1)]
    assert len(keys) == 40
    assert [keys[key] for key in GOOD] == GOOD
    assert not set(keys) & set(BAD)


def test_a_batch_sampler_of_the_user_gets_replacements_out_of_the_batch() -> None:
    batches = [[0, 3, 7], [17, 20, 21, 22], [5, 6]]
    loader = DataLoader(faulty(), batch_sampler=batches, on_error="replace")
    found = keys_of(loader)
    assert [len(batch) for batch in found] == [3, 4, 2]
    assert found[0][1] in (0, 7)
    assert found[1][0] in (20, 21, 22)
    with pytest.raises(SampleError, match="no other sample to take in its place"):
        list(DataLoader(faulty(), batch_sampler=[[3]], on_error="replace"))


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("batch_size", [1, None])
def test_a_batch_of_one_of_a_sampler_of_the_user_gets_the_last_good_sample(policy: Any, batch_size: Any) -> None:
    loader = DataLoader(faulty(), batch_size, sampler=[7, 3, 8, 17, 9], on_error=policy)
    assert [int(batch) for batch in loader] == [7, 7, 8, 8, 9]
    first = DataLoader(faulty(), batch_size, sampler=[3, 7], on_error=policy)
    with pytest.raises(SampleError, match="since the sampler is not known"):
        list(first)


def test_without_a_seed_each_epoch_has_other_replacements() -> None:
    replacements = set()
    for number in range(8):
        torch.manual_seed(number)
        loader = DataLoader(faulty(), 40, on_error="replace")
        list(loader)
        replacements.add(tuple(record.replacement for record in loader.faults.records))
    assert len(replacements) == 8


def test_a_subset_is_replaced_from_itself() -> None:
    validation = Subset(faulty(), [3, 5, 7, 9, 17, 19])
    loader = DataLoader(validation, 3, on_error="replace", seed=2)
    keys = {key for _ in range(10) for batch in keys_of(loader) for key in batch}
    assert keys == {5, 7, 9, 19}


# -- collation ---------------------------------------------------------------------------------------------------------


class Shapes(Dataset[torch.Tensor]):
    """Samples of one shape, but for some."""

    def __init__(self, odd: tuple[int, ...]) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((3 if key in self.odd else 2,), key)


@backends
def test_a_sample_that_does_not_go_with_the_others_is_found(backend: Any) -> None:
    loader = DataLoader(Shapes((0, 6)), 4, on_error="replace", seed=1, **backend)
    batches = [batch[:, 0].tolist() for batch in loader]
    assert [record.key for record in loader.faults.records] == [0, 6]
    assert {record.stage for record in loader.faults.records} == {"collate"}
    assert batches[0][1:] == [1, 2, 3]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert not {key for batch in batches for key in batch} & {0, 6}


def test_if_most_samples_differ_no_sample_is_to_blame() -> None:
    data = [torch.ones(length) for length in range(12)]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(DataLoader(data, 6, on_error="skip"))  # type: ignore[arg-type]


def test_the_old_idiom_works_as_ever() -> None:
    class OrNone(Numbers):
        def __getitem__(self, key: int) -> Any:
            return None if key in BAD else torch.tensor(key)

    def filtered(samples: list[Any]) -> Any:
        return torch.utils.data.default_collate([sample for sample in samples if sample is not None])

    for policy in ("raise", "skip"):
        loader = DataLoader(OrNone(), 5, collate_fn=filtered, on_error=policy)  # type: ignore[arg-type]
        assert [key for batch in keys_of(loader) for key in batch] == GOOD
        assert loader.faults.bad == 0
    nothing = DataLoader(OrNone(), 4, collate_fn=filtered, on_error="skip")
    assert [len(batch) for batch in nothing] == [3, 3, 4, 4, 3, 4, 4, 4, 1, 4]
    assert len(list(DataLoader(OrNone(), 4, on_error="replace", seed=0))) == 10  # default collation refuses None


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_the_odd_ones_are_the_minority(kinds_of_samples: list[int]) -> None:
    def collate(places: list[int]) -> None:
        if len({kinds_of_samples[place] for place in places}) > 1:
            raise ValueError("they differ")

    odd = odd_ones_out(len(kinds_of_samples), collate)
    left = [kind for place, kind in enumerate(kinds_of_samples) if place not in odd]
    assert len(set(left)) == 1 or not odd
    if odd:
        assert len(left) > len(kinds_of_samples) / 2


def test_index_errors_say_that_a_length_may_be_wrong() -> None:
    class Liar(Numbers):
        def __getitem__(self, key: int) -> torch.Tensor:
            return torch.arange(30)[key]

    with pytest.raises(IndexError) as caught:
        list(DataLoader(Liar(), 4))
    assert any("len(dataset) is 40, so key 30 should exist" in note for note in caught.value.__notes__)
    beyond = DataLoader([1, 2, 3], batch_sampler=BatchSampler(SequentialSampler(range(5)), 2, drop_last=False))
    with pytest.raises(IndexError) as caught:
        list(beyond)
    assert any("the sampler gave key 3, but len(dataset) is 3" in note for note in caught.value.__notes__)
