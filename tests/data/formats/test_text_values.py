"""Text as other tools write it: no value is made of what it only looks like, and no line is one long name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import FormatError

DATES = ["2024-05-01", "2024-01-05 10:00:00", "2024-01-05 10:00:00.5", "10:30", "2024-05-01T10:00:00Z"]


def open_text(path: Path, text: str | bytes) -> Any:
    """Writes a file, and opens it."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return headrace.open(path)


@pytest.mark.quick
@pytest.mark.parametrize("date", DATES)
def test_text_that_looks_like_a_time_is_text(date: str, tmp_path: Path) -> None:
    for other in (date, "unknown", ""):
        csv = open_text(tmp_path / "x.csv", f"n,x\n1,{date}\n2,{other}\n")
        assert [sample["x"] for sample in csv] == [date, other]
        lines = open_text(tmp_path / "x.jsonl", f'{{"x": "{date}"}}\n{{"x": "{other}"}}\n')
        assert [sample["x"] for sample in lines] == [date, other]


def test_what_is_no_plain_number_is_text(tmp_path: Path) -> None:
    dataset = open_text(tmp_path / "x.csv", "hex,dec,flag,word\n0x10,10,true,true\n16,0,False,1\n")
    assert [dict(sample) for sample in dataset] == [
        {"hex": "0x10", "dec": 10, "flag": np.True_, "word": "true"},
        {"hex": "16", "dec": 0, "flag": np.False_, "word": "1"},
    ]


@pytest.mark.quick
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_seen_and_told(delimiter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "id;x\n1;0.5\n2;1.5\n".replace(";", delimiter)
    with caplog.at_level(logging.WARNING, "headrace"):
        dataset = open_text(tmp_path / "x.csv", text)
    assert [dict(sample) for sample in dataset] == [{"id": 1, "x": 0.5}, {"id": 2, "x": 1.5}]
    assert repr(delimiter) in caplog.text
    assert "x.csv" in caplog.text


def test_the_line_for_excel_is_no_line_of_names(tmp_path: Path) -> None:
    assert dict(open_text(tmp_path / "x.csv", "sep=;\r\nid;x\r\n1;2\r\n")[0]) == {"id": 1, "x": 2}
    assert dict(open_text(tmp_path / "x.csv", "sep=,\nid,x\n1,2\n")[0]) == {"id": 1, "x": 2}


ENCODINGS = {
    "Latin-1": ("id,x\n1,Größe\n".encode("latin-1"), '{"x": "Größe"}\n'.encode("latin-1")),
    "UTF-16": ("id,x\n1,Größe\n".encode("utf-16"), '{"x": "Größe"}\n'.encode("utf-16")),
    "UTF-16 without a mark": ("id,x\n1,a\n".encode("utf-16-le"), '{"x": "a"}\n'.encode("utf-16-le")),
}


@pytest.mark.quick
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text_in_another_encoding_is_named(encoding: str, tmp_path: Path) -> None:
    for ending, text in zip(("csv", "jsonl"), ENCODINGS[encoding], strict=True):
        with pytest.raises(FormatError, match="another encoding") as caught:
            open_text(tmp_path / f"x.{ending}", text)
        assert f"x.{ending}" in str(caught.value)


def test_text_elsewhere_that_is_no_utf8_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.array(["ü".encode("latin-1")] * 3, "S3")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "0.txt").write_bytes("Grüße".encode("latin-1"))
    for path, column in ((tmp_path / "x.h5", "x"), (tmp_path / "folder", "text")):
        caplog.clear()
        value = headrace.open(path)[0][column]
        assert value.encode("utf-8", "surrogateescape").decode("latin-1") in ("ü", "Grüße")
        assert f"{path}, column {column!r} holds text that is no UTF-8" in caplog.text


@pytest.mark.quick
@pytest.mark.parametrize("form", ["arrow", "npz", "jsonl"])
def test_the_index_of_pandas_has_a_name_and_can_be_packed(form: str, tmp_path: Path) -> None:
    dataset = open_text(tmp_path / "x.csv", ",x\n0,5\n1,6\n")
    assert dataset.schema.names == ("Unnamed: 0", "x")
    headrace.pack(tmp_path / "x.csv", tmp_path / f"y.{form}", headrace.PackOptions(form), workers=1)
    assert [dict(sample) for sample in headrace.open(tmp_path / f"y.{form}")] == [
        {"Unnamed: 0": 0, "x": 5},
        {"Unnamed: 0": 1, "x": 6},
    ]
