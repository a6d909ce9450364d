"""Files that others replace, delete, overwrite or cut while a dataset is open: old values, new ones, or an error."""

from __future__ import annotations

import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import FormatError
from headrace.data import mapped_files
from headrace.data.formats import registry
from tests.data.formats.damage import ALLOWED, fault_of
from tests.data.formats.own_handles import files_of_samples
from tests.data.formats.samples import FORMATS, path_of, plain, usual, write
from tests.programs import ROOT, run

Samples = list[dict[str, Any]]

READ = [format for format in FORMATS if not registry.FORMATS[format].mapped]


def beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.headrace.json")


def replace(path: Path, new: Path) -> None:
    """Puts other data in place by renaming, as docs/howto/formats.md asks for."""
    if path.is_dir():
        path.rename(path.with_name("away"))
    for made, target in ((new, path), (beside(new), beside(path))):
        if made.exists():
            made.replace(target)


def delete(path: Path, new: Path) -> None:
    """Removes the data."""
    assert new.exists()
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def overwrite(path: Path, new: Path) -> None:
    """Writes other data over the files, as `cp` does."""
    if path.is_dir():
        shutil.copytree(new, path, dirs_exist_ok=True)
    else:
        shutil.copyfile(new, path)
    if beside(new).exists():
        shutil.copyfile(beside(new), beside(path))


def used(dataset: Any) -> Any:
    dataset[0]
    return dataset


def unused(dataset: Any) -> Any:
    return dataset


def through_worker(dataset: Any) -> Samples:
    return plain(headrace.DataLoader(dataset, batch_size=None, num_workers=1))


def elsewhere(dataset: Any) -> Samples:
    """Reads as another process does that the dataset is sent to."""
    return plain(pickle.loads(pickle.dumps(dataset)))


def one_by_one(dataset: Any) -> Samples:
    return plain(dataset)


def together(dataset: Any) -> Samples:
    return plain(dataset.__getitems__(list(range(len(dataset)))))


def batches(dataset: Any) -> Samples:
    return plain(headrace.DataLoader(dataset, batch_size=4))


WAYS = (through_worker, elsewhere, together, one_by_one)


def outcome_of(way: Callable[[Any], Samples], dataset: Any, folder: Path) -> Samples | None:
    """Returns the samples; None if there was an error that helps the user."""
    try:
        return way(dataset)
    except ALLOWED as error:
        assert fault_of(error, folder) is None
        return None


@pytest.mark.parametrize("state", [unused, used])
@pytest.mark.parametrize(
    ("format", "change"),
    [(format, change) for format in FORMATS for change in (delete, replace)] + [(format, overwrite) for format in READ],
)
@pytest.mark.quick(state="used", change=["overwrite"])
def test_each_sample_is_of_the_old_data_or_of_the_new(
    format: str, change: Callable[[Path, Path], None], state: Callable[[Any], Any], tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    path = write(format, path_of(format, tmp_path), [usual(format, seed=7)])
    new = write(format, path_of(format, tmp_path / "new"), [usual(format, seed=8)])
    old_samples = plain(headrace.open(path))
    new_samples = plain(headrace.open(new))
    dataset = state(headrace.open(path))
    change(path, new)
    for way in WAYS:
        found = outcome_of(way, dataset, tmp_path)
        for number, sample in enumerate(found or []):
            assert sample in (old_samples[number], new_samples[number]), (way.__name__, number)

    if change is not delete and format != "folder":
        assert plain(headrace.open(path)) == new_samples


CUT = """
import sys
from pathlib import Path
import headrace
from headrace.data import mapped_files
from tests.data.formats.damage import ALLOWED, fault_of
from tests.data.formats.own_handles import files_of_samples
from tests.data.formats.own_handles import files_of_samples
from tests.data.formats.samples import plain
path = Path(sys.argv[1])
dataset = headrace.open(path)
old = plain(dataset)
for file in files_of_samples(path):
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 3)
for read in (lambda: plain(dataset.__getitems__([19, 3])), lambda: plain([dataset[19]])):
    try:
        found = read()
    except ALLOWED as error:
        print(fault_of(error, path.parent))
    else:
        print(found in ([old[19], old[3]], [old[19]]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("format", [format for format in READ if format != "folder"])
def test_files_that_are_cut_while_they_are_read_give_old_values_or_an_error(format: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path), [usual(format)])
    ended = run(["-c", CUT, path], cwd=ROOT)
    assert (ended.returncode, set(ended.stdout.split()) <= {"None", "True"}) == (0, True), ended
    assert len(ended.stdout.split()) == 2


def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has mapped files looked at with each batch."""
    monkeypatch.setattr(mapped_files, "EVERY", 0.0)
    monkeypatch.setattr(mapped_files, "SHARE", math.inf)


@pytest.mark.quick(format=["npz", "arrow"])
@pytest.mark.parametrize("format", [format for format in FORMATS if registry.FORMATS[format].mapped])
@pytest.mark.parametrize("read", [together, one_by_one, batches])
def test_who_writes_over_mapped_files_is_told(
    format: str, read: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    always_due(monkeypatch)
    path = write(format, path_of(format, tmp_path), [usual(format, seed=7)])
    dataset = headrace.open(path)
    read(dataset)
    read(dataset)
    assert caplog.text == ""
    for file in files_of_samples(path):
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    for _ in range(3):
        read(dataset)
    written = [line for line in caplog.messages if "was changed while it is read" in line]
    # Once for each file that is mapped; a description beside them is not.
    assert 1 <= len(written) == len(set(written)) <= len(files_of_samples(path))

    for file in files_of_samples(path):
        os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(FormatError, match="cut short while it is read"):
        read(dataset)


def test_files_beside_those_that_are_mapped_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    always_due(monkeypatch)
    path = write("memmap", path_of("memmap", tmp_path), [usual("memmap")])
    dataset = headrace.open(path)
    (path / "train.log").write_text("a long line")
    together(dataset)
    (path / "train.log").write_text("")
    together(dataset)
    assert caplog.text == ""


def test_a_pattern_and_a_list_of_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    always_due(monkeypatch)
    path = tmp_path / "data"
    headrace.pack(write("npz", path_of("npz", tmp_path), [usual("npz")]), path, workers=1)
    (tmp_path / "link").symlink_to(path)
    for place in (str(path / "*.arrow"), [str(path / "part-00000.arrow")], str(tmp_path / "link")):
        dataset = headrace.open(place)
        together(dataset)
        file = path / "part-00000.arrow"
        whole = file.read_bytes()
        os.truncate(file, len(whole) - 1)
        with pytest.raises(FormatError, match="cut short while it is read"):
            together(dataset)
        file.write_bytes(whole)
