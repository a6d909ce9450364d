"""`headrace bench`: every form is written, checked and measured, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.cli.bench import options_from, run_bench, sentences, short, slower_with_workers
from headrace.core.errors import DatasetError, FormatError, UsageError
from headrace.core.process.machine import cores
from headrace.data.blobs import Blobs
from headrace.data.formats.columns import Block, block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import FORMATS, open_writer
from headrace.measure.bench import comparison as measuring
from headrace.measure.bench import forms
from headrace.measure.bench.checksum import checksum_of
from headrace.measure.bench.comparison import BenchOptions, Comparison, FormFigures, compare
from headrace.measure.bench.forms import GOOD_FOR, Form
from headrace.measure.bench.loader_passes import LoaderChoice

COUNT = 50
QUICK = 0.003
MIXED = Schema(
    (
        Field("image", "bytes"),
        Field("label", "fixed", np.dtype(np.int64), (), ("cat", "dog")),
        Field("caption", "text"),
        Field("tokens", "ragged", np.dtype(np.int32)),
        Field("number", "fixed", np.dtype(np.uint64)),
    )
)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    room = tmp_path / "tmp"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setenv("COLUMNS", "160")
    return room


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.npz"
    x = np.random.default_rng(0).standard_normal((COUNT, 4), np.float32)
    np.savez(path, x=x, y=np.arange(COUNT))
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    rows = [
        {
            "image": bytes(range(number)),
            "label": np.int64(number % 2),
            "caption": f"picture {number}\n",
            "tokens": np.arange(number % 5, dtype=np.int32),
            "number": np.uint64(2**63 + number),
        }
        for number in range(COUNT)
    ]
    writer = open_writer(tmp_path / "mixed", MIXED, "memmap")
    writer.append(block_from(MIXED, rows))
    writer.seal()
    return tmp_path / "mixed"


def options(uri: Path, *formats: str, **more: Any) -> BenchOptions:
    given: dict[str, Any] = {"batch_size": 8, "workers": (0,), "seconds": QUICK, **more}
    return BenchOptions(str(uri), formats=formats, **given)


@pytest.mark.thorough
def test_the_json_output_has_every_figure_of_every_form(
    numbers: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_bench(options(numbers, "memmap", "arrow", "csv", workers=(0, 1), samples=30), json_output=True)
    found = json.loads(capsys.readouterr().out)
    assert status == 0
    assert found["correct"] is True
    assert found["samples"] == 30
    assert found["source"] == {"place": str(numbers), "format": "npz", "samples": COUNT}
    assert [(one["format"], one["is_source"]) for one in sorted(found["forms"], key=lambda one: one["format"])] == [
        ("arrow", False),
        ("memmap", False),
        ("npz", True),
    ]
    measured = {(loader, workers, order) for loader, workers in (("torch", 0), ("headrace", 0), ("headrace", 1))
                for order in ("random", "sequential")}  # fmt: skip
    for form in found["forms"]:
        assert {(one["loader"], one["workers"], one["order"]) for one in form["speeds"]} == measured
        assert all(len(one["rounds"]) == found["rounds"] == 3 for one in form["speeds"])
        assert all(one["samples_per_second"] == sorted(one["rounds"])[1] > 0 for one in form["speeds"])
        assert form["correct"] is form["safe_with_workers"] is True
        assert form["samples"] == (COUNT if form["is_source"] else 30)
        assert form["good_for"] == GOOD_FOR[form["format"]]
        assert len(form["open_seconds"]) == len(form["first_sample_seconds"]) == 3
    assert [one["format"] for one in found["left_out"]] == ["csv"]
    assert "x: " in found["left_out"][0]["reason"]
    assert list(room.iterdir()) == []


def test_size_and_number_of_files_are_those_on_the_disk(numbers: Path, room: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    comparison = compare(options(numbers, "memmap", keep=keep))
    assert comparison.now.bytes == numbers.stat().st_size
    made = next(one for one in comparison.figures if not one.form.is_source)
    files = [one for one in (keep / "memmap").rglob("*") if one.is_file()]
    assert (made.files, made.bytes) == (len(files), sum(one.stat().st_size for one in files))
    assert made.files == 3


def test_the_forms_are_sorted_by_their_speed_in_random_order(numbers: Path, room: Path) -> None:
    figures = compare(options(numbers, "memmap", "arrow", "parquet")).figures
    speeds = [one.speed(LoaderChoice("headrace", 0), "random") or 0.0 for one in figures]
    assert speeds == sorted(speeds, reverse=True)
    assert len(speeds) == 4


def test_text_says_which_form_is_fastest_and_why_others_are_missing(
    numbers: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench(options(numbers, "memmap", "folder"), json_output=False) == 0
    text = capsys.readouterr().out
    assert "the first 50" not in text
    assert "all 50 samples, batches of 8" in text
    assert "folder: x: a file holds bytes or text" in text
    # On a machine that others keep busy, none is called the fastest.
    assert "In random order" in text or "Fastest in random order" in text or "This machine is busy" in text
    assert "checksums over whole epochs compared" in text


@pytest.mark.thorough
def test_samples_of_every_kind_come_out_the_same_with_both_loaders(mixed: Path, room: Path) -> None:
    comparison = compare(options(mixed, "memmap", "arrow", "hdf5", "webdataset", "pt", workers=(0, 1)))
    assert comparison.is_right
    choices = {LoaderChoice("torch", 0), LoaderChoice("headrace", 0), LoaderChoice("headrace", 1)}
    assert [set(one.checks) for one in comparison.figures] == [choices] * len(comparison.figures)
    assert len(comparison.figures) > 3


def test_every_form_has_a_sentence_on_what_it_is_good_for() -> None:
    assert set(GOOD_FOR) == set(FORMATS)
    assert all(text.endswith(".") for text in GOOD_FOR.values())


class Forger:
    """A writer that changes one number."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.seal, self.abort = writer.seal, writer.abort

    def append(self, block: Block) -> None:
        changed = dict(block.columns) | {"y": np.where(np.arange(len(block)) == 7, -1, block.columns["y"])}
        self._writer.append(Block(block.schema, changed))


def test_a_form_that_delivers_something_else_is_found_out_and_never_the_fastest(
    numbers: Path, room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forms, "open_writer", lambda path, schema, name: Forger(open_writer(path, schema, name)))
    assert run_bench(options(numbers, "memmap"), json_output=False) == 1
    text = capsys.readouterr().out
    assert "WRONG DATA: memmap did not deliver what the source holds (torch, 0 workers; headrace, 0 workers)." in text
    assert "checksums over whole epochs compared" not in text
    assert "is clearly faster than the one that the data are in now, npz" in text or "This machine is busy" in text


def test_a_form_that_cannot_hold_the_samples_after_all_is_left_out_with_its_reason(
    numbers: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuser(Forger):
        def append(self, block: Block) -> None:
            raise FormatError("too much\n  place:    somewhere\n  found:    a lot\n  fix:      less")

    def opened(path: Any, schema: Schema, name: str) -> Any:
        writer = open_writer(path, schema, name)
        return Refuser(writer) if name == "arrow" else writer

    monkeypatch.setattr(forms, "open_writer", opened)
    comparison = compare(options(numbers, "arrow", "memmap"))
    assert comparison.left_out == {"arrow": "too much; a lot; less"}
    assert sorted(one.form.format for one in comparison.figures) == ["memmap", "npz"]


def interrupting(stage: str) -> Callable[[str, float], None]:
    def report(what: str, share: float) -> None:
        if what.startswith(stage):
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("stage", ["writing", "completing", "checking", "measuring"])
@pytest.mark.parametrize("kept", [False, True], ids=["temporary", "kept"])
def test_an_interruption_leaves_nothing_behind(
    stage: str, kept: bool, numbers: Path, room: Path, tmp_path: Path
) -> None:
    keep = tmp_path / "new" / "kept" if kept else None
    with pytest.raises(KeyboardInterrupt):
        compare(options(numbers, "memmap", "npz", keep=keep), interrupting(stage))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["numbers.npz", "tmp"]
    assert list(room.iterdir()) == []


@pytest.mark.thorough
def test_sigterm_leaves_nothing_behind(numbers: Path, room: Path) -> None:
    command = [sys.executable, "-m", "headrace", "bench", str(numbers), "--formats", "memmap", "--seconds", "60"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(room)}, stderr=subprocess.PIPE) as process:
        for _ in range(3000):
            if list(room.glob("headrace-bench-*")) or process.poll() is not None:
                break
            threading.Event().wait(0.01)
        assert list(room.glob("headrace-bench-*"))
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert list(room.iterdir()) == []


def test_an_interruption_leaves_what_else_is_in_the_users_folder(numbers: Path, room: Path, tmp_path: Path) -> None:
    keep = tmp_path / "mine"
    keep.mkdir()
    (keep / "notes.txt").write_text("keep me")
    with pytest.raises(KeyboardInterrupt):
        compare(options(numbers, "memmap", keep=keep), interrupting("measuring"))
    assert [one.name for one in keep.iterdir()] == ["notes.txt"]


def test_kept_forms_can_be_opened_and_are_never_overwritten(numbers: Path, room: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    given = options(numbers, "memmap", "arrow", keep=keep, samples=20)
    kept = compare(given)
    assert f"The files are in {keep}." in sentences(kept)
    for form in (one.form for one in kept.figures):
        data = headrace.open(form.place)
        assert data.format == form.format
        np.testing.assert_array_equal(data[19]["x"], headrace.open(str(numbers))[19]["x"])
    with pytest.raises(UsageError, match="there is something already"):
        compare(given)
    assert len(headrace.open(str(keep / "memmap" / "data"))) == 20


@pytest.mark.thorough
def test_forms_that_make_a_file_of_each_sample_are_left_out_of_large_data_unless_they_are_named(
    mixed: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "FILES", 10)
    monkeypatch.setattr(measuring, "FORMATS", {"memmap": FORMATS["memmap"], "pt": FORMATS["pt"]})
    given = replace(options(mixed), formats=None)
    comparison = compare(given)
    assert "as many files" in comparison.left_out["pt"]
    named = compare(replace(given, formats=["pt"]))
    assert [one.form.format for one in named.figures if not one.form.is_source] == ["pt"]


def test_without_a_number_of_samples_as_many_are_taken_as_fit_into_the_bytes(
    numbers: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = headrace.open(str(numbers))
    assert measuring.bytes_of_sample(source) == 4 * 4 + 8
    assert measuring.samples_of(options(numbers), source) == COUNT
    monkeypatch.setattr(measuring, "ENOUGH", 24 * 10 + 1)
    assert measuring.samples_of(options(numbers), source) == 10
    assert measuring.samples_of(options(numbers, samples=12), source) == 12


def test_data_without_samples_are_refused(room: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", x=np.empty((0, 3), np.float32))
    with pytest.raises(DatasetError, match="nothing to measure"):
        compare(options(tmp_path / "empty.npz", "memmap"))


def test_lists_on_the_command_line_are_separated_by_commas() -> None:
    given = options_from("data", "0,4", "memmap, arrow", ["x"], None, batch_size=3)
    assert (given.workers, given.formats, given.columns, given.batch_size) == ([0, 4], ["memmap", "arrow"], ["x"], 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"formats": ["memap"]}, "did you mean 'memmap'"),
        ({"workers": (-1,)}, "workers"),
        ({"batch_size": 0}, "batch size"),
        ({"samples": 0}, "samples"),
        ({"seconds": 0.0}, "seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    wrong: dict[str, Any], message: str, numbers: Path, room: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        compare(replace(options(numbers, "memmap"), **wrong))
    assert list(room.iterdir()) == []


def test_workers_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="numbers, such as 0,2"):
        options_from("data", "two", None, None, None)


def invented(name: str, *, alone: float, together: float, source: bool = False) -> FormFigures:
    figures = FormFigures(Form(name, name, None if source else Path(name)), 1, 1, 1)
    figures.speeds = {
        (LoaderChoice("headrace", 0), "random"): [alone],
        (LoaderChoice("headrace", 2), "random"): [together],
    }
    figures.checks = {LoaderChoice("headrace", 0): True, LoaderChoice("headrace", 2): True}
    return figures


def test_the_sentences_name_the_fastest_form_its_ratio_and_where_workers_are_slower() -> None:
    figures = [invented("memmap", alone=900, together=300), invented("npz", alone=100, together=180, source=True)]
    choices = [LoaderChoice("torch", 0), LoaderChoice("headrace", 0), LoaderChoice("headrace", 2)]
    source: Any = None
    comparison = Comparison(BenchOptions("data"), source, 10, 0, choices, figures, {})
    assert slower_with_workers(comparison) == {2: ["memmap"]}
    lines = sentences(comparison)
    assert "Fastest in random order: memmap, 5.0 times as fast as npz, the format now." in lines
    assert any(line.startswith("Slower with 2 workers than without any: memmap. ") for line in lines)


def invented_comparison(*figures: FormFigures) -> Comparison:
    choices = [LoaderChoice("torch", 0), LoaderChoice("headrace", 0), LoaderChoice("headrace", 2)]
    source: Any = None
    return Comparison(BenchOptions("data"), source, 10, 0, choices, list(figures), {})


def test_forms_whose_rounds_overlap_are_called_tied() -> None:
    fast = invented("jsonl", alone=900, together=300)
    now = invented("npz", alone=100, together=180, source=True)
    fast.speeds[LoaderChoice("headrace", 0), "random"] = [170.0, 900.0, 950.0]
    (line,) = [line for line in sentences(invented_comparison(fast, now)) if "random order" in line]
    assert line == "In random order no format is clearly faster than the one that the data are in now, npz."


def test_nothing_is_advised_on_a_busy_machine() -> None:
    comparison = invented_comparison(
        invented("memmap", alone=900, together=300), invented("npz", alone=100, together=180, source=True)
    )
    neighbours = comparison.neighbours
    neighbours.seconds, neighbours.own, neighbours.others = 10.0, 10.0 * cores(), 20.0
    lines = sentences(comparison)
    assert any("This machine is busy: other processes took 2.0 of" in line for line in lines)
    assert not any("astest in random" in line or "Slower with" in line for line in lines)

    # Others that leave cores idle take nothing away.
    neighbours.own, neighbours.others = 0.0, 10.0 * (cores() - 1)
    assert any("Fastest in random order: memmap" in line for line in sentences(comparison))


@pytest.mark.thorough
def test_the_form_now_is_compared_once(numbers: Path, room: Path) -> None:
    given = replace(options(numbers), formats=None)
    found = compare(given)
    assert [one.form.is_source for one in found.figures if one.form.format == "npz"] == [True]
    assert found.left_out["npz"] == "the data are in it now: that is measured"


def test_a_form_that_fails_with_workers_is_called_unsafe() -> None:
    figures = invented("lmdb", alone=1, together=1)
    assert figures.is_safe_with_workers is True
    del figures.checks[LoaderChoice("headrace", 2)]
    assert figures.is_safe_with_workers is None
    figures.failures[LoaderChoice("headrace", 2)] = "a reason"
    assert figures.is_safe_with_workers is False
    assert not figures.is_right


@pytest.mark.parametrize(
    ("number", "text"), [(7.25, "7.25"), (789.4, "789"), (45_600, "45.6k"), (456_000, "456k"), (1_234_567, "1.23M")]
)
def test_speeds_are_printed_in_a_few_characters(number: float, text: str) -> None:
    assert short(number) == text


def test_the_checksum_sees_one_changed_bit_in_a_large_tensor_and_a_changed_order() -> None:
    batch = {"x": torch.zeros(1 << 20, dtype=torch.uint8), "t": ["a", "b"]}
    before = checksum_of([batch])
    batch["x"][777_777] = 1  # type: ignore[call-overload, index]
    assert checksum_of([batch]) != before
    assert checksum_of([{"t": ["b", "a"]}]) != checksum_of([{"t": ["a", "b"]}])
    assert checksum_of([{"t": ["ab", ""]}]) != checksum_of([{"t": ["a", "b"]}])


def test_the_checksum_takes_byte_strings_for_what_they_hold() -> None:
    blobs = Blobs(torch.tensor([0, 1, 2, 3], dtype=torch.uint8), np.array([1, 3]), np.array([3, 4]))
    assert checksum_of([blobs]) == checksum_of([[b"\1\2", b"\3"]])
    assert checksum_of([blobs]) != checksum_of([[b"\1\2", b"\4"]])
