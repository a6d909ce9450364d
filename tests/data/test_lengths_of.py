"""The lengths of documents: from offsets and columns of stored data, or measured and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.core.errors import SampleError, StaleCacheError, UsageError
from headrace.types import Block, Field, Ragged, Schema

LENGTHS = [3, 0, 5, 1, 4]
TOKENS = Schema((Field("input_ids", "ragged", np.dtype("int32")), Field("size", dtype=np.dtype("int64"))))


def stored_at(path: Path, form: str) -> Any:
    offsets = np.append(0, np.cumsum(LENGTHS))
    ragged = Ragged(np.arange(offsets[-1], dtype=np.int32), offsets)
    writer = headrace.open_writer(str(path), TOKENS, form)
    writer.append(Block(TOKENS, {"input_ids": ragged, "size": np.array(LENGTHS)}))
    writer.seal()
    return headrace.open(str(path))


class Documents(torch.utils.data.Dataset[Any]):
    """Documents that lie nowhere."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"input_ids": torch.zeros(self.lengths[key], dtype=torch.int64), "tokens": list(range(key)), "text": "a"}


@pytest.mark.parametrize("form", ["memmap", "arrow", "hdf5", "lmdb", "parquet"])
@pytest.mark.quick
def test_stored_columns_tell_the_lengths(tmp_path: Path, form: str) -> None:
    data = stored_at(tmp_path / "data", form)
    for column in ("input_ids", "size"):
        lengths = headrace.lengths_of(data, column)
        assert lengths.tolist() == LENGTHS
        assert lengths.dtype == np.int32


@pytest.mark.parametrize("column, lengths", [("tokens", [0, 1, 2, 3, 4]), ("input_ids", LENGTHS)])
@pytest.mark.quick
def test_what_is_not_stored_is_measured(column: str, lengths: list[int]) -> None:
    assert headrace.lengths_of(Documents(LENGTHS), column).tolist() == lengths


def test_samples_may_be_tokens_or_tuples() -> None:
    assert headrace.lengths_of([[1, 2], [3]], None).tolist() == [2, 1]
    assert headrace.lengths_of([("a", [1, 2]), ("b", [3])], 1).tolist() == [2, 1]
    assert headrace.lengths_of([{"size": 7}, {"size": 2}], "size").tolist() == [7, 2]
    assert headrace.lengths_of([]).tolist() == []


def test_measured_lengths_are_kept_until_the_data_change(tmp_path: Path) -> None:
    class Reading(Documents):
        def __getitem__(self, key: int) -> dict[str, Any]:
            with (tmp_path / "read").open("a") as read:
                read.write("x")
            return super().__getitem__(key)

        def fingerprint(self) -> str:
            return str(self.lengths)

    cache = tmp_path / "lengths"
    assert headrace.lengths_of(Reading(LENGTHS), cache=cache).tolist() == LENGTHS
    times = (tmp_path / "read").stat().st_size
    assert headrace.lengths_of(Reading(LENGTHS), cache=cache).tolist() == LENGTHS
    assert (tmp_path / "read").stat().st_size == times
    with pytest.raises(StaleCacheError):
        headrace.lengths_of(Reading([1, 2]), cache=cache)


def test_cached_steps_are_not_run_again(tmp_path: Path) -> None:
    data = stored_at(tmp_path / "data", "memmap")
    doubled = data.map(lambda tokens: np.repeat(tokens, 2), on="input_ids")
    assert headrace.lengths_of(doubled).tolist() == [2 * length for length in LENGTHS]
    kept = doubled.cache("memory")
    assert headrace.lengths_of(kept).tolist() == [2 * length for length in LENGTHS]
    assert headrace.lengths_of(kept.map(lambda tokens: tokens[:1], on="input_ids")).tolist() == [1, 0, 1, 1, 1]


def test_a_column_without_lengths_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="no such column") as caught:
        headrace.lengths_of([{"tokens": [1]}])
    assert "a sample with 'tokens'" in str(caught.value)
    with pytest.raises(UsageError, match="no tokens"):
        headrace.lengths_of(Documents([1]), "text")
    for size in (1.7, None, True, "a"):
        with pytest.raises((SampleError, UsageError), match="has no"):
            headrace.lengths_of([{"size": size}], "size")
    with pytest.raises(UsageError, match="no tokens"):
        headrace.lengths_of([{"size": {"a": 1}}], "size")
    with pytest.raises(UsageError, match="no lengths"):
        headrace.lengths_of([{"size": -1}], "size")
    schema = Schema((Field("text", "text"),))
    writer = headrace.open_writer(str(tmp_path / "texts"), schema, "memmap")
    writer.append(Block(schema, {"text": Ragged(np.frombuffer(b"abc", np.uint8), np.array([0, 3]))}))
    writer.seal()
    with pytest.raises(UsageError, match="no tokens"):
        headrace.lengths_of(headrace.open(str(tmp_path / "texts")), "text")
