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
from headrace.data.formats.tar import shard_files

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


# -- the indices of shards -------------------------------------------------------------------------------------------


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards whose headers were walked."""
    names: list[str] = []
    real = shard_files.index_of

    def index_of(name: str) -> Any:
        names.append(Path(name).name)
        return real(name)

    monkeypatch.setattr(shard_files, "index_of", index_of)
    return names


def write(path: Path, values: np.ndarray) -> None:
    writer = open_writer(path, SCHEMA, "webdataset")
    writer.append(Block(SCHEMA, {"number": values}))
    writer.seal()


def test_a_second_epoch_walks_no_headers_again(shards: str, walked: list[str]) -> None:
    loader = headrace.DataLoader(headrace.open(shards).stream(), batch_size=10)
    first = numbers(loader)
    seen = len(walked)
    assert {"0.tar", "1.tar", "2.tar"} <= set(walked)
    assert numbers(loader) == first
    assert len(walked) == seen


def test_a_shard_that_was_written_anew_is_read_anew(shards: str, tmp_path: Path, walked: list[str]) -> None:
    loader = headrace.DataLoader(headrace.open(shards).stream(), batch_size=10)
    first = numbers(loader)
    seen = len(walked)
    anew = tmp_path / "anew" / "1.tar"
    anew.parent.mkdir()
    write(anew, np.arange(100, 110))
    anew.replace(tmp_path / "1.tar")
    assert numbers(loader) == [first[0], list(range(100, 110)), first[2]]
    assert walked[seen:] == ["1.tar"]


@pytest.mark.parametrize("size", [10, 7])
def test_a_shard_that_is_gone_is_an_error(shards: str, tmp_path: Path, size: int) -> None:
    loader = headrace.DataLoader(headrace.open(shards).stream(), batch_size=size)
    numbers(loader)
    (tmp_path / "1.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.tar"):
        numbers(loader)


def test_a_shard_that_is_gone_is_left_out_where_that_is_asked_for(shards: str, tmp_path: Path) -> None:
    loader = headrace.DataLoader(headrace.open(shards).stream(), batch_size=4, on_error="skip")
    numbers(loader)
    (tmp_path / "1.tar").unlink()
    kept = [number for batch in numbers(loader) for number in batch]
    # The last batch is the bad one alone, so that another sample takes its place.
    assert kept[:-1] == [*range(10), *range(20, 30)]
    assert loader.faults.bad == 1


def test_indices_that_take_too_much_memory_are_walked_again(
    shards: str, walked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "KEPT", 0)
    loader = headrace.DataLoader(headrace.open(shards).stream(), batch_size=10)
    first = numbers(loader)
    seen = len(walked)
    assert numbers(loader) == first
    assert len(walked) > seen
