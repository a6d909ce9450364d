"""Whole numbers that 64 bits cannot hold are an error, and never floating point without a word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.core.errors import FormatError

FITTING = (2**63 - 1, -(2**63), 0)
TOO_LARGE = (2**63, 2**64, -(2**63) - 1, 10**40)


def table(folder: Path, form: str, values: list[int]) -> Path:
    path = folder / f"data.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps({"x": value, "y": "a"}) + "\n" for value in values))
    else:
        separator = {"csv": ",", "tsv": "\t"}[form]
        path.write_text("\n".join(separator.join((str(value), "a")) for value in ["x", *values]) + "\n")
    return path


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("value", TOO_LARGE)
def test_a_whole_number_above_64_bits_is_named_with_its_place(form: str, value: int, tmp_path: Path) -> None:
    path = table(tmp_path, form, [1, 2, value])
    with pytest.raises(FormatError) as caught:
        headrace.open(path)
    text = str(caught.value)
    assert f"{path}, sample 2, column 'x'" in text
    assert str(value) in text
    assert "fix:" in text


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("value", FITTING)
def test_a_whole_number_of_64_bits_is_read(form: str, value: int, tmp_path: Path) -> None:
    data = headrace.open(table(tmp_path, form, [1, 2, value]))
    assert data.schema["x"].dtype == np.int64
    assert data[2]["x"] == value


def test_a_whole_number_above_64_bits_in_a_list_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"x": [1, 2]}\n{"x": [3, 18446744073709551616]}\n')
    with pytest.raises(FormatError, match="sample 1"):
        headrace.open(tmp_path / "data.jsonl")


@pytest.mark.parametrize(("form", "text"), [
    ("csv", "x\n0.5\n18446744073709551616\n"), ("csv", "x\n1e300\n-1e30\ninf\n"), ("csv", "x\n1\n1e19\n"),
    ("jsonl", '{"x": 0.5}\n{"x": 18446744073709551616}\n'), ("jsonl", '{"x": 1e300}\n'), ("jsonl", '{"x": [1e19]}\n'),
])  # fmt: skip
def test_columns_of_floating_point_may_hold_large_numbers(form: str, text: str, tmp_path: Path) -> None:
    (tmp_path / f"data.{form}").write_text(text)
    assert headrace.open(tmp_path / f"data.{form}").schema["x"].dtype == np.float64


@given(values=st.lists(st.integers(-(2**66), 2**66), min_size=1, max_size=5), form=st.sampled_from(["csv", "jsonl"]))
def test_whole_numbers_come_back_exactly_or_not_at_all(
    values: list[int], form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = table(tmp_path_factory.mktemp("numbers"), form, values)
    try:
        read = [int(sample["x"]) for sample in headrace.open(path)]
    except FormatError:
        assert any(not -(2**63) <= value < 2**63 for value in values)
    else:
        assert read == values
