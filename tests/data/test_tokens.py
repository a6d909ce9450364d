"""Flat files of tokens: windows of them, and the same windows one token later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset
from typer.testing import CliRunner

import headrace
from headrace.cli.app import app
from headrace.core.errors import DatasetNotFoundError, FormatError, UsageError


def tokens(path: Path, count: int, dtype: str = "uint16") -> Path:
    np.arange(count, dtype=dtype).tofile(path)
    return path


def inputs_of(loader: Any) -> list[int]:
    found: list[int] = []
    for batch in loader:
        assert batch["inputs"].dtype == batch["targets"].dtype == torch.int64
        assert torch.equal(batch["targets"], batch["inputs"] + 1)
        found += batch["inputs"].flatten().tolist()
    return found


@given(count=st.integers(2, 400), window=st.integers(1, 50), dtype=st.sampled_from(["uint16", "int32", "uint8"]),
       batch=st.integers(1, 7))  # fmt: skip
def test_each_token_is_an_input_once_and_targets_come_one_later(
    count: int, window: int, dtype: str, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if dtype == "uint8":
        count = min(count, 256)
    if count < window + 1:
        return
    path = tokens(tmp_path_factory.mktemp("tokens") / "train.bin", count, dtype)
    data = headrace.open_tokens(path, dtype=dtype, window=window)
    found = inputs_of(headrace.DataLoader(data, batch_size=batch, shuffle=True))
    assert sorted(found) == list(range((count - 1) // window * window))


@given(count=st.integers(2, 200), window=st.integers(1, 20), stride=st.integers(1, 30))
def test_window_k_begins_at_k_strides(
    count: int, window: int, stride: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if count < window + 1:
        return
    path = tokens(tmp_path_factory.mktemp("tokens") / "train.bin", count)
    data = headrace.open_tokens(path, dtype="uint16", window=window, stride=stride)
    starts = [start for start in range(0, count, stride) if start + window + 1 <= count]
    assert [int(data[key]["inputs"][0]) for key in range(len(data))] == starts


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_deliver_the_same_tokens(start: str, tmp_path: Path) -> None:
    data = headrace.open_tokens(tokens(tmp_path / "train.bin", 4001), dtype="uint16", window=100)
    loader = headrace.DataLoader(data, batch_size=4, shuffle=True, num_workers=2, multiprocessing_context=start)
    assert sorted(inputs_of(loader)) == list(range(4000))


def test_torch_s_loader_and_subsets_take_windows(tmp_path: Path) -> None:
    data = headrace.open_tokens(tokens(tmp_path / "train.bin", 401), dtype="uint16", window=100)
    assert sorted(inputs_of(TorchLoader(data, batch_size=3))) == list(range(400))
    assert inputs_of(headrace.DataLoader(Subset(data, [1, 3]), batch_size=2)) == [*range(100, 200), *range(300, 400)]
    assert data[-1]["targets"][-1] == 400
    with pytest.raises(IndexError):
        data[4]


def test_without_a_window_each_token_is_a_sample(tmp_path: Path) -> None:
    data = headrace.open_tokens(tokens(tmp_path / "train.bin", 50, "int32"), dtype=np.int32)
    assert len(data) == 50
    assert data[7] == {"tokens": 7}
    assert data.windows(5).fetch_batch([1], headrace.data.stored.OwnMemory())["tokens"].tolist() == [[5, 6, 7, 8, 9]]


@pytest.mark.parametrize("stride", [7, 5, 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_windows_end_to_end_are_gathered_as_those_that_overlap(stride: int, dtype: torch.dtype, tmp_path: Path) -> None:
    data = (
        headrace.open_tokens(tokens(tmp_path / "train.bin", 50, "int32"), dtype=np.int32)
        .windows(7, stride)
        .astype(dtype)
    )
    keys = [len(data) - 1, 0, 3, 0]
    batch = data.fetch_batch(keys, headrace.data.stored.OwnMemory())["tokens"]
    assert batch.dtype is dtype
    assert batch.tolist() == [list(range(key * stride, key * stride + 7)) for key in keys]
    with pytest.raises(IndexError):
        data.fetch_batch([len(data)], headrace.data.stored.OwnMemory())


def test_what_does_not_fit_is_an_error_with_a_fix(tmp_path: Path) -> None:
    path = tokens(tmp_path / "train.bin", 10)
    with pytest.raises(FormatError, match=r'open_tokens\("train.bin", "uint16"'):
        headrace.open(path)
    with pytest.raises(UsageError, match="without window="):
        headrace.open_tokens(path, dtype="uint16", stride=4)  # type: ignore[call-overload]
    with pytest.raises(FormatError, match="10 tokens"):
        headrace.open_tokens(path, dtype="uint16", window=10)
    with pytest.raises(DatasetNotFoundError):
        headrace.open_tokens(tmp_path / "no.bin", dtype="uint16")
    for window in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="window="):
            headrace.open_tokens(path, dtype="uint16", window=window)
    for dtype in ("tokens", "object", ">u2"):
        with pytest.raises(UsageError, match="no such type"):
            headrace.open_tokens(path, dtype=dtype)


@pytest.mark.parametrize("size", [0, 7])
def test_a_size_that_is_no_multiple_is_an_error(size: int, tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(size))
    with pytest.raises(FormatError, match=f"{size} bytes"):
        headrace.open_tokens(tmp_path / "train.bin", dtype="uint16", window=1)


@pytest.mark.parametrize(
    "given", [["--format", "npy"], ["--columns", "a"], ["--table", "t"]], ids=lambda given: given[0]
)
def test_inspect_takes_nothing_of_other_forms_beside_a_type(given: list[str], tmp_path: Path) -> None:
    path = tokens(tmp_path / "train.bin", 10)
    done = CliRunner().invoke(app, ["inspect", str(path), "--dtype", "uint16", *given])
    assert isinstance(done.exception, UsageError)
    assert f"--dtype with {given[0]}" in str(done.exception)


def test_inspect_looks_inside(tmp_path: Path) -> None:
    path = tokens(tmp_path / "train.bin", 1000)
    done = CliRunner().invoke(app, ["inspect", str(path), "--dtype", "uint16", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["format"] == "flat"
