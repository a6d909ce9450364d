"""What becomes of bad samples of iterable datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from headrace import DataLoader
from headrace.testing import FaultyStream, Raise
from tests.batches.test_policies import BAD, GOOD, keys_of


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, range(40))


class Short(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, range(33))


def stream() -> FaultyStream:
    return FaultyStream(Stream(), {key: Raise(ValueError("bad")) for key in BAD})


@pytest.mark.parametrize(
    "more",
    [
        {"backend": "inline"}, {"num_workers": 1}, {"num_workers": 1, "backend": "thread"},
        {"num_workers": 2, "shard": "auto"}, {"backend": "inline", "shard": "auto"},
    ],
    ids=str,
)  # fmt: skip
def test_streams_are_replaced_out_of_the_batch_or_from_before_it(more: Any) -> None:
    loader = DataLoader(stream(), 4, on_error="replace", **more)
    flat = [key for batch in keys_of(loader) for key in batch]
    assert len(flat) == 40
    assert [flat[key] for key in GOOD] == GOOD
    assert {record.key: record.replacement for record in loader.faults.records} == {key: flat[key] for key in BAD}
    skipping = DataLoader(stream(), 4, on_error="skip", **more)
    batches = keys_of(skipping)
    assert [len(batch) for batch in batches] == [3, 3, 4, 4, 3, 4, 4, 4, 1, 4]


@pytest.mark.parametrize("rank", [0, 1])
def test_dealt_out_streams_keep_their_ranks_in_step(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for workers in (0, 2):
        loader = DataLoader(stream(), 4, on_error="skip", shard="auto", num_workers=workers)
        batches = keys_of(loader)
        assert len(batches) == 5 == len([batch for batch in batches if batch])
        mine = {key for batch in batches for key in batch}
        assert mine >= {key for key in GOOD if key % 2 == rank}


def test_a_rank_has_a_last_batch_where_its_only_sample_is_bad_and_another_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    short = FaultyStream(Short(), {32: Raise(ValueError("bad"))})
    assert keys_of(DataLoader(short, 4, on_error="skip", shard="auto"))[-1] == [31]


def test_a_generator_cannot_go_on_and_says_so() -> None:
    class Generated(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for key in range(10):
                if key == 5:
                    raise ValueError("bad")
                yield key

    class Mapped(Generated):
        def __iter__(self) -> Iterator[int]:
            return map(abs, super().__iter__())

    for dataset in (Generated(), Mapped()):
        with pytest.raises(ValueError, match="bad") as caught:
            list(DataLoader(dataset, 2, on_error="skip"))
        assert any("a generator ends when it raises" in note for note in caught.value.__notes__)


def test_an_iterator_that_is_stuck_is_left_in_the_end() -> None:
    class Stuck(IterableDataset[int]):
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            raise ValueError("for ever")

    with pytest.raises(ValueError, match="for ever"):
        list(DataLoader(Stuck(), 200, on_error="skip"))


def test_a_bad_last_sample_is_no_end(tmp_path: Path) -> None:
    dataset = FaultyStream(Stream(), {39: Raise(ValueError("bad"))})
    assert [len(batch) for batch in DataLoader(dataset, 7, on_error="skip")] == [7, 7, 7, 7, 7, 4]
    assert [len(batch) for batch in DataLoader(dataset, 39, on_error="replace")] == [39, 1]
