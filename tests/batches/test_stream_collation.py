"""What becomes of samples of iterable datasets that cannot be collated, or not with the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import headrace
from headrace import DataLoader
from headrace.core.errors import SampleError
from headrace.faults.bad_sample import BadSample

FAULTS: dict[str, dict[str, Any]] = {
    "float tokens": {"input_ids": np.ones(3)},
    "few labels": {"labels": [1]},
    "a further column": {"extra": 1},
    "padded": {"attention_mask": [1, 1, 0]},
}


class Numbers(IterableDataset[torch.Tensor]):
    """Numbers in tensors [2]; those in `bad` in tensors [3]."""

    def __init__(self, bad: tuple[int, ...], count: int = 40) -> None:
        self.bad = bad
        self.count = count

    def sample(self, number: int) -> torch.Tensor:
        return torch.full((3 if number in self.bad else 2,), number)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.sample, headrace.shard(range(self.count)))


class Dealt(Numbers):
    """The same in each worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.sample, range(self.count))


class Stateful(Numbers):
    """Its iterator has a state."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return Reading(self)


class Reading:
    def __init__(self, stream: Numbers) -> None:
        self.stream = stream
        self.numbers = list(headrace.shard(range(stream.count)))
        self.next = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        if self.next == len(self.numbers):
            raise StopIteration
        self.next += 1
        return self.stream.sample(self.numbers[self.next - 1])

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Documents(IterableDataset[Any]):
    """Documents; number 11 has a fault."""

    def __init__(self, fault: dict[str, Any]) -> None:
        self.fault = fault

    def __iter__(self) -> Iterator[Any]:
        for number in headrace.shard(range(40)):
            document = {"input_ids": [number] * 3, "labels": [number] * 3}
            yield {**document, **self.fault} if number == 11 else document


def numbers_of(batches: Any) -> list[list[int]]:
    return [batch.reshape(len(batch), -1)[:, 0].tolist() for batch in batches]


def of_three(sample: torch.Tensor) -> torch.Tensor:
    """A collate function that refuses every tensor of three."""
    if sample.shape[-1] == 3:
        raise ValueError("three")
    return sample


def batch_of_two(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([of_three(sample) for sample in samples])


@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.quick
def test_a_document_that_does_not_fit_is_settled_and_counted(action: Any, fault: str, workers: int) -> None:
    stream = Documents(FAULTS[fault])
    loader = DataLoader(stream, 4, collate_fn=headrace.collate_packed, on_error=action, num_workers=workers)
    batches = list(loader)
    found = [batch["input_ids"][batch["position_ids"] == 0].tolist() for batch in batches]
    assert {number for numbers in found for number in numbers} == set(range(40)) - {11}
    assert sorted(map(len, found)) == [3 if action == "skip" else 4] + 9 * [4]
    (record,) = loader.faults.records
    assert (record.stage, record.action) == ("collate", action)
    # The number of the sample in its worker's stream.
    assert record.key == (5 if workers else 11)


@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.parametrize("rank", [0, 1])
def test_dealt_out_streams_keep_their_ranks_in_step(
    rank: int, workers: int, action: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    # Of the last batch there is but one sample, which no rank can take.
    bad = (3, 17, 40)
    loader = DataLoader(Dealt(bad, 41), 4, on_error=action, shard="auto", num_workers=workers, collate_fn=batch_of_two)
    batches = numbers_of(loader)
    assert len(batches) == 6
    mine = [number for batch in batches[:-1] for number in batch]
    good = [number for number in range(rank, 40, 2) if number not in bad]
    assert set(mine) == set(good)
    assert len(batches[-1]) == 1
    assert batches[-1][0] not in bad
    assert loader.faults.bad == len([number for number in bad if number % 2 == rank])


@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.parametrize("kind", [Numbers, Stateful])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:Numbers cannot say where it was")
def test_a_loader_goes_on_exactly_behind_them(workers: int, kind: Any, action: Any) -> None:
    def make() -> Any:
        return DataLoader(kind((2, 9, 20, 31)), 4, on_error=action, num_workers=workers, seed=1)

    expected = numbers_of(make())
    for count in (1, 3, 5):
        loader = make()
        batches = iter(loader)
        before = numbers_of([next(batches) for _ in range(count)])
        again = make()
        again.load_state_dict(loader.state_dict())
        assert [*before, *numbers_of(again)] == expected


@pytest.mark.parametrize("kind", [Numbers, Stateful])
@pytest.mark.parametrize("size", [1, 2, None])
def test_a_stream_may_begin_with_them(size: int | None, kind: Any) -> None:
    collate: Any = of_three if size is None else batch_of_two
    loader = DataLoader(kind((0, 1), 8), size, on_error="skip", collate_fn=collate)
    batches = list(loader)
    found = {int(number) for batch in batches for number in batch.reshape(-1)}
    assert found == set(range(2, 8))
    # Where the iterator has a state, the next good sample takes the place of each batch.
    assert len(batches) * (size or 1) == (6 if kind is Numbers else 8)


def test_a_batch_of_which_all_are_skipped_gets_the_sample_before_it() -> None:
    loader = DataLoader(Numbers((4, 5), 8), 2, on_error="skip", collate_fn=batch_of_two)
    assert numbers_of(loader) == [[0, 1], [2, 3], [3], [6, 7]]
    assert [(record.key, record.action) for record in loader.faults.records] == [(4, "skip"), (5, "replace")]


def test_a_sample_that_is_replaced_is_not_replaced_by_one_that_does_not_fit() -> None:
    class Broken(Stateful):
        def sample(self, number: int) -> torch.Tensor:
            if number == 1:
                raise ValueError("cannot be read")
            return super().sample(number)

    loader = DataLoader(Broken((0, 2), 8), 4, on_error="replace", collate_fn=batch_of_two)
    assert numbers_of(loader)[0] == [3, 3, 3, 3]
    stages = {record.key: record.stage for record in loader.faults.records}
    assert stages == {1: "load", 0: "collate", 2: "collate"}
    assert loader.faults.replaced == 3


@pytest.mark.parametrize("count", [8, 400])
def test_a_collate_function_that_fails_for_every_sample_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="three"):
        list(DataLoader(Numbers(tuple(range(count)), count), 4, on_error="skip", collate_fn=batch_of_two))


def test_samples_that_differ_from_each_other_are_an_error() -> None:
    class Different(Numbers):
        def sample(self, number: int) -> torch.Tensor:
            return torch.zeros(number)

    loader = DataLoader(Different(()), 4, on_error="skip")
    with pytest.raises(RuntimeError, match="equal size"):
        list(loader)
    assert loader.faults.bad == 0


def test_a_function_is_asked_and_may_raise() -> None:
    asked: list[tuple[int, str]] = []

    def decide(bad: BadSample) -> Any:
        asked.append((bad.key, bad.stage))
        return "skip" if bad.key == 5 else "raise"

    loader = DataLoader(Numbers((5, 9)), 4, on_error=decide)
    batches = iter(loader)
    assert numbers_of([next(batches), next(batches)]) == [[0, 1, 2, 3], [4, 6, 7]]
    with pytest.raises(RuntimeError, match="equal size") as caught:
        next(batches)
    assert asked == [(5, "collate"), (9, "collate")]
    assert any("sample number 8 and 9 of this iterator" in note for note in caught.value.__notes__)


def test_without_a_policy_the_error_is_raised() -> None:
    with pytest.raises(SampleError, match="no tokens"):
        list(DataLoader(Documents(FAULTS["float tokens"]), 4, collate_fn=headrace.collate_packed))
