"""`headrace inspect`: what it says of some data is so, and nothing in the data reaches the terminal as a command."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import headrace
from headrace.cli.inspect import run_inspect
from headrace.core.errors import DatasetError, DatasetNotFoundError, MissingExtraError, UsageError
from headrace.data.contact_sheet import CAPTION, TILE, make_sheet
from headrace.data.formats.columns import Column, block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.tables import BlockReader
from headrace.data.formats.registry import open_writer
from headrace.data.tally import ROWS, looked_at

EVIL = "\x1b[2J\x07 [bold red]:car:[/] \u202e\r\n"
SCHEMA = Schema(
    (
        Field("image", "bytes"),
        Field("label", "fixed", np.dtype(np.int64), (), ("cat", f"dog{EVIL}", "cow")),
        Field("caption", "text"),
        Field("tokens", "ragged", np.dtype(np.int32)),
        Field("x", "fixed", np.dtype(np.float32), (3,)),
    )
)


def jpeg(width: int, height: int, grey: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), grey, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def rows(count: int = 12) -> list[dict[str, Any]]:
    return [
        {
            "image": jpeg(40 + number, 30, 20 * number),
            "label": np.int64(number % 2),
            "caption": EVIL + "y" * number,
            "tokens": np.arange(number, dtype=np.int32),
            "x": np.full(3, np.nan if number == 5 else number, np.float32),
        }
        for number in range(count)
    ]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return written(tmp_path / "data", SCHEMA, rows())


def written(path: Path, schema: Schema, samples: Sequence[Mapping[str, Any]]) -> Path:
    writer = open_writer(path, schema, "memmap")
    writer.append(block_from(schema, samples))
    writer.seal()
    return path


def inspect(path: Path | str, **changed: Any) -> int:
    options: dict[str, Any] = {
        "columns": None, "samples": 3, "format": None, "trust": False, "sheet": None, "json_output": False,
    }  # fmt: skip
    return run_inspect(str(path), **options | changed)


def about(path: Path | str, capsys: pytest.CaptureFixture[str], **changed: Any) -> dict[str, Any]:
    assert inspect(path, json_output=True, **changed) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_json_output_says_where_the_data_lie_and_how_large_they_are(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = about(stored, capsys)
    files = [one for one in stored.iterdir() if one.is_file()]
    expected = {
        "format": "memmap", "title": "folder of .npy files, memory-mapped", "place": str(stored), "samples": 12,
        "bytes": sum(one.stat().st_size for one in files), "files": len(files), "manifest": True, "looked_at": 12,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert [one["name"] for one in found["columns"]] == list(SCHEMA.names)


def test_figures_are_those_of_numbers_and_of_lengths(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {one["name"]: one for one in about(stored, capsys)["columns"]}
    assert columns["tokens"]["length"] == {"min": 0, "mean": 5.5, "max": 11}
    start = len(EVIL.encode())
    assert columns["caption"]["length"] == {"min": start, "mean": start + 5.5, "max": start + 11}
    sizes = [len(row["image"]) for row in rows()]
    assert columns["image"]["length"] == {"min": min(sizes), "mean": pytest.approx(np.mean(sizes)), "max": max(sizes)}
    assert columns["x"]["value"] == {"min": 0.0, "mean": pytest.approx((66 - 5) / 11), "max": 11.0}
    assert columns["x"]["not_finite"] == 3


def test_the_rows_of_each_class_are_counted_and_classes_without_any_are_named(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column = about(stored, capsys)["columns"][1]
    assert [(one["label"], one["count"]) for one in column["counts"]] == [("cat", 6), (f"dog{EVIL}", 6), ("cow", 0)]


def test_few_different_whole_numbers_are_counted_like_classes_and_many_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", few=np.arange(60) % 3, many=np.arange(60), yes=np.arange(60) < 20)
    columns = {one["name"]: one for one in about(tmp_path / "data.npz", capsys)["columns"]}
    assert [(one["label"], one["count"]) for one in columns["few"]["counts"]] == [("0", 20), ("1", 20), ("2", 20)]
    assert [(one["label"], one["count"]) for one in columns["yes"]["counts"]] == [("0", 40), ("1", 20)]
    assert "counts" not in columns["many"]


def test_rows_are_the_first_ones_and_long_values_are_shortened(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = about(stored, capsys, samples=2, columns=["tokens", "image", "label"])["rows"]
    assert [list(row) for row in found] == [["tokens", "image", "label"]] * 2
    assert found[1]["tokens"] == {"dtype": "int32", "shape": [1], "first": [0]}
    assert found[1]["image"] == {"bytes": len(rows()[1]["image"]), "image": "JPEG 41x30"}
    assert found[0]["label"] == {"value": 0, "label": "cat"}


def test_nothing_in_the_data_reaches_the_terminal_as_a_command_or_as_markup(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(stored) == 0
    text = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[bold red]:car:[/]" in text
    assert "\\x1b[2J" in text
    assert "\\u202e" in text


def test_the_printed_rows_show_images_classes_and_arrays(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(stored) == 0
    text = capsys.readouterr().out
    assert "JPEG 42x30" in text
    assert "JPEG 43x30" not in text
    assert "0 (cat)" in text
    assert "[3] 2, 2, 2" in text
    assert "x: 3 numbers are infinite or not a number" in text


def test_many_columns_are_printed_from_top_to_bottom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", **{f"column{number}": np.arange(3) + 10 * number for number in range(12)})
    assert inspect(tmp_path / "data.npz") == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["column11", "110", "111", "112"] in [line.split() for line in lines]


def test_data_without_samples_or_without_a_manifest_are_described_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", x=np.empty((0, 3), np.float32))
    found = about(tmp_path / "data.npz", capsys)
    assert (found["samples"], found["looked_at"], found["rows"], found["manifest"]) == (0, 0, [], False)
    assert found["columns"][0]["value"] == {}
    assert inspect(tmp_path / "data.npz") == 0


def test_a_pattern_of_files_counts_them_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = Schema((Field("x", "fixed", np.dtype(np.int64)),))
    for number in range(3):
        writer = open_writer(tmp_path / f"part-{number}.arrow", schema, "arrow")
        writer.append(block_from(schema, [{"x": number}] * 4))
        writer.seal()
    found = about(tmp_path / "part-*.arrow", capsys)
    assert (found["samples"], found["files"]) == (12, 3)
    assert found["bytes"] == sum(one.stat().st_size for one in tmp_path.glob("*.arrow"))


def test_rows_that_are_looked_at_are_spread_over_the_data(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(50_000))
    keys = looked_at(headrace.open(tmp_path / "data.npy").reader)
    assert (len(keys), keys[0], keys[-1]) == (ROWS, 0, 49_999)
    assert 0 < np.diff(keys).min()
    assert np.diff(keys).max() < 2 * 50


def test_rows_are_looked_at_out_of_step_with_what_comes_again_and_again(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(2000) % 10)
    labels = looked_at(headrace.open(tmp_path / "data.npy").reader) % 10
    assert np.bincount(labels).min() > 50


class Blocks(BlockReader):
    format = "blocks"
    schema = Schema((Field("x", "fixed", np.dtype(np.int64)),))

    def __init__(self) -> None:
        super().__init__("nowhere", self.schema, [500] * 100, 1 << 20)
        self.read: set[int] = set()

    def read_block(self, number: int, names: Sequence[str]) -> Mapping[str, Column]:
        self.read.add(number)
        return {"x": np.arange(500) + 500 * number}


def test_of_data_that_are_read_in_blocks_a_few_whole_ones_are_looked_at() -> None:
    reader = Blocks()
    keys = looked_at(reader)
    block = reader.fetch(keys, ["x"])
    np.testing.assert_array_equal(block.columns["x"], keys)
    assert len(reader.read) == 16
    assert {0, 99} <= reader.read
    assert 900 < len(keys) <= ROWS


# -- the sheet ---------------------------------------------------------------------------------------------------------


def test_the_sheet_shows_every_picture_with_its_own_colour(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = about(stored, capsys, sheet=tmp_path / "sheet.png")
    assert found["sheet"] == {"file": str(tmp_path / "sheet.png"), "pictures": 12}
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert (sheet.format, sheet.size) == ("PNG", (8 * TILE, 2 * (TILE + CAPTION)))
        pixels = np.asarray(sheet.convert("L")).astype(int)
    for number in range(12):
        left, top = number % 8 * TILE, number // 8 * (TILE + CAPTION)
        assert abs(pixels[top + TILE // 2, left + TILE // 2] - 20 * number) <= 3
        assert pixels[top + TILE : top + TILE + CAPTION, left : left + TILE].min() < 128  # the label


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 1), (5, 6, 3), (3, 5, 6)], ids=str)
def test_arrays_of_bytes_are_pictures_in_each_of_the_usual_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    grey = np.arange(70, dtype=np.uint8).reshape(70, *(1 for _ in shape)) * 3
    np.save(tmp_path / "data.npy", np.broadcast_to(grey, (70, *shape)))
    reader = headrace.open(tmp_path / "data.npy").reader
    assert make_sheet(reader, reader.schema.names, tmp_path / "sheet.png") == 64
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (8 * TILE, 8 * (TILE + CAPTION))
        assert sheet.getpixel((TILE // 2, TILE // 2)) == (0, 0, 0)
        assert sheet.getpixel((sheet.width - TILE // 2, sheet.height - CAPTION - TILE // 2)) == (207, 207, 207)


def test_a_picture_that_cannot_be_decoded_leaves_its_place_empty(tmp_path: Path) -> None:
    schema = Schema((Field("jpg", "bytes"),))
    path = written(tmp_path / "data", schema, [{"jpg": jpeg(20, 20, 9)}, {"jpg": b"no picture"}])
    reader = headrace.open(path).reader
    assert make_sheet(reader, ["jpg"], tmp_path / "sheet.png") == 2
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.getpixel((TILE // 2, TILE // 2)) == (9, 9, 9)
        assert sheet.getpixel((TILE + TILE // 2, TILE // 2)) == (255, 255, 255)


def test_data_without_pictures_make_no_sheet(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 3, 8, 8), np.float32), flat=np.zeros((4, 9), np.uint8))
    with pytest.raises(UsageError, match="no pictures"):
        inspect(tmp_path / "data.npz", sheet=tmp_path / "sheet.png")
    assert [one.name for one in tmp_path.iterdir()] == ["data.npz"]


def test_without_pillow_the_data_are_described_and_a_sheet_names_the_extra(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(rows()[0]["image"])
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert about(stored, capsys)["rows"][0]["image"] == {"bytes": size, "image": None}
    with pytest.raises(MissingExtraError, match=r"headrace\[images\]"):
        inspect(stored, sheet=tmp_path / "sheet.png")


def test_a_sheet_that_cannot_be_written_names_its_file(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot write the sheet[\s\S]*sheet\.png"):
        inspect(stored, sheet=tmp_path / "missing" / "sheet.png")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_data_that_are_not_there_and_columns_that_they_lack_are_named(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no such data"):
        inspect(tmp_path / "missing")
    with pytest.raises(UsageError, match="no such columns"):
        inspect(stored, columns=["imago"])


def test_an_error_of_the_operating_system_names_the_place(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied", "secret.npy")

    monkeypatch.setattr("headrace.data.opening.open", refuse)
    with pytest.raises(DatasetError, match=r"cannot read the data[\s\S]*secret\.npy[\s\S]*Permission denied"):
        inspect(stored)


def test_numbers_whose_sum_is_too_large_have_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "large.npz", x=np.full(10, 1e308), y=np.full(10, np.iinfo(np.uint64).max))
    found = {column["name"]: column["value"] for column in about(tmp_path / "large.npz", capsys)["columns"]}
    assert found["x"] == {"min": 1e308, "mean": None, "max": 1e308}
    assert found["y"]["mean"] == float(np.iinfo(np.uint64).max)
