"""Streams of stored data go on exactly where they were, also where a batch lies in two shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.data.formats.columns import Block
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer

SCHEMA = Schema((Field("number", "fixed", np.dtype(np.int64)),))


@pytest.fixture
def shards(tmp_path: Path) -> str:
    for shard in range(3):
        writer = open_writer(tmp_path / f"{shard}.tar", SCHEMA, "webdataset")
        writer.append(Block(SCHEMA, {"number": np.arange(shard * 10, shard * 10 + 10)}))
        writer.seal()
    return str(tmp_path / "*.tar")


def numbers(loader: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


@pytest.mark.parametrize("shuffle", [0, 7])
@pytest.mark.parametrize("size", [1, 4, 7, 25, 40])
def test_a_stream_of_shards_resumes_after_every_batch(shards: str, size: int, shuffle: int) -> None:
    def made() -> Any:
        return headrace.DataLoader(headrace.open(shards).stream(shuffle=shuffle), batch_size=size, seed=3)

    whole = numbers(made())
    assert sorted(number for batch in whole for number in batch) == list(range(30))
    for stop in range(1, len(whole)):
        loader = made()
        iterator = iter(loader)
        head = [next(iterator)["number"].tolist() for _ in range(stop)]
        again = made()
        again.load_state_dict(loader.state_dict())
        assert head + numbers(again) == whole


def test_a_stream_goes_on_in_smaller_pieces_than_it_was_read_in(shards: str) -> None:
    first = iter(headrace.open(shards).stream())
    batch, count = first.next_batch(13, headrace.data.stored.OwnMemory())
    assert (batch["number"].tolist(), count) == (list(range(13)), 13)
    second = iter(headrace.open(shards).stream())
    second.load_state_dict(first.state_dict())
    assert [int(sample["number"]) for sample in second] == list(range(13, 30))
