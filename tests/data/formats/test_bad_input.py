"""Damaged, cut off, hostile or missing data: an error that says what and where, never a crash or a hang."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import DatasetError, FormatError, HeadraceError
from headrace.data.formats.registry import open_reader
from tests.data.formats import damage, fuzz
from tests.data.formats.samples import FORMATS, PATHS, halves, path_of, read, usual, write

pytestmark = pytest.mark.filterwarnings("ignore:.*columns of these types are left out:UserWarning")

IN_FILES = [format for format in FORMATS if format in PATHS]
IN_FOLDERS = [format for format in FORMATS if format not in PATHS]
SHARDED = [format for format, paths in PATHS.items() if len(paths) > 1]


def check(path: Path, root: Path, format: str | None = None) -> BaseException | None:
    """Reads everything. Returns the error, which must be one that helps; None if all could be read."""
    try:
        damage.read_all(path, format)
    except Exception as error:  # noqa: BLE001 - which ones there are is the question
        fault = damage.fault_of(error, root)
        assert fault is None, f"{fault}: {type(error).__name__}: {error}"
        return error
    return None


def refused(path: Path, root: Path, format: str | None = None) -> str:
    """Reads everything, which must be refused. Returns what the error says."""
    error = check(path, root, format)
    assert error is not None, "bad data were read as if they were sound"
    return str(error)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("format", IN_FILES)
def test_an_empty_file_is_refused(format: str, named: bool, tmp_path: Path) -> None:
    path = path_of(format, tmp_path)
    path.touch()
    assert path.name in refused(path, tmp_path, format if named else None)


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_folder_is_refused(format: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    assert "data" in refused(path, tmp_path, format)
    assert "data" in refused(path, tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_data_that_are_not_there_are_not_found(format: str, tmp_path: Path) -> None:
    path = path_of(format, tmp_path)
    for name in (format, None):
        error = check(path, tmp_path, name)
        assert isinstance(error, FileNotFoundError)
        assert path.name in str(error)


@pytest.mark.parametrize("format", IN_FILES)
def test_a_file_of_something_else_is_refused(format: str, tmp_path: Path) -> None:
    path = path_of(format, tmp_path)
    for number, content in enumerate(
        (b"\x00" * 5000, bytes(range(256)) * 40, b"PK\x03\x04" * 99, b'{"a": [1, {}\n' * 9)
    ):
        if format in ("csv", "tsv") and number == 1:
            continue  # text is what it is
        if format == "webdataset" and number == 0:
            continue  # so ends a tar file: this one is empty
        path.write_bytes(content)
        if format in ("csv", "tsv"):
            check(path, tmp_path, format)
        else:
            refused(path, tmp_path, format)


@pytest.mark.quick(keep=True, format=["arrow", "memmap", "npz", "webdataset"])
@pytest.mark.parametrize("keep", [True, False], ids=["with manifest", "without manifest"])
@pytest.mark.parametrize("format", FORMATS)
def test_files_that_were_cut_off_are_refused_or_hold_what_they_held(format: str, keep: bool, tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    sound.mkdir()
    write(format, path_of(format, sound), halves(usual(format)))
    if not keep:
        damage.forget_manifest(sound)
    rng = np.random.default_rng(3)
    for relative in [path.relative_to(sound) for path in damage.files_below(sound)]:
        size = (sound / relative).stat().st_size
        cuts = {0, 1, 7, 8, 64, 512, size // 2, size - 1, size - 9, *rng.integers(0, max(size, 1), 5).tolist()}
        for cut in sorted(cut for cut in cuts if 0 <= cut < size):
            room = tmp_path / "room"
            shutil.copytree(sound, room)
            with (room / relative).open("r+b") as file:
                file.truncate(cut)
            error = check(path_of(format, room), room)
            data = relative.name != "headrace.json" and not relative.name.endswith(".headrace.json")
            checks_lengths = keep and format not in ("pt", "folder")
            assert error is not None or not (data and checks_lengths), f"{relative} cut to {cut} was not noticed"
            shutil.rmtree(room)


@pytest.mark.quick(seed=0, format=["arrow", "webdataset", "hdf5", "npz", "csv", "pt"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("format", FORMATS)
def test_random_damage_ends_in_a_helpful_error_or_in_data(format: str, seed: int, tmp_path: Path) -> None:
    fuzz.make_masters(tmp_path / "masters", [format])
    room = tmp_path / "room"
    faults = []
    for case in range(40):
        found = fuzz.run_case(fuzz.Job(tmp_path / "masters", room, format, seed), case)
        if found is not None:
            faults.append(found)
    assert not faults, faults


@pytest.mark.parametrize("format", FORMATS)
def test_flips_in_the_values_change_nothing_but_values(format: str, tmp_path: Path) -> None:
    """The lengths and types come from elsewhere, so that a wrong bit in the values themselves goes no further."""
    block = usual(format)
    path = write(format, path_of(format, tmp_path), [block])
    rng = np.random.default_rng(0)
    for _ in range(5):
        files = [one for one in damage.files_below(tmp_path) if "headrace" not in one.name]
        victim = files[int(rng.integers(len(files)))]
        sound = victim.read_bytes()
        flipped = bytearray(sound)
        flipped[int(rng.integers(len(flipped)))] ^= 1 << int(rng.integers(8))
        victim.write_bytes(flipped)
        error = check(path, tmp_path)
        if error is None:
            changed = read(path)
            assert changed.schema.names == block.schema.names
        victim.write_bytes(sound)


# -- files that are missing, hidden, or in a circle -------------------------------------------------------------------


@pytest.mark.parametrize("format", SHARDED)
def test_a_missing_shard_of_a_range_is_named(format: str, tmp_path: Path) -> None:
    suffix = PATHS[format][0].removeprefix("data")
    for number in (0, 1, 3):
        write(format, tmp_path / f"part-{number:03d}{suffix}", [usual(format)])
    text = refused(tmp_path / f"part-{{000..003}}{suffix}", tmp_path)
    assert "3 of 4" in text
    assert f"part-002{suffix}" in text
    assert len(open_reader(tmp_path / f"part-{{000..001}}{suffix}")) == 40


@pytest.mark.parametrize("format", [*IN_FOLDERS, *SHARDED])
def test_a_missing_file_of_a_folder_is_told(format: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path, sharded=True), [usual(format)])
    for file in damage.files_below(path):
        if file.name == "headrace.json" or file.name.endswith((".index", "cache.lock")):
            continue
        sound = file.read_bytes()
        file.unlink()
        refused(path, tmp_path)
        file.write_bytes(sound)


@pytest.mark.parametrize("format", FORMATS)
def test_links_in_a_circle_are_refused(format: str, tmp_path: Path) -> None:
    path = path_of(format, tmp_path)
    path.symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(path)
    refused(path, tmp_path, format)
    refused(path, tmp_path)


@pytest.mark.parametrize("format", IN_FOLDERS)
def test_a_folder_in_itself_is_read_once(format: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path), [usual(format)])
    (path / "again").symlink_to(path)
    assert len(read(path)) == 20


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_are_no_utf8_can_be_paths(format: str, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    path = path_of(format, folder)
    fault = None
    try:
        write(format, path, [usual(format)])
    except (HeadraceError, OSError):
        fault = None if list(folder.iterdir()) == [] else "something is left"
    except Exception as error:  # noqa: BLE001 - which ones there are is the question
        fault = type(error).__name__
    else:
        try:
            damage.read_all(path, None)
        except Exception as error:  # noqa: BLE001 - its text is no UTF-8 either, and would not reach a report
            fault = damage.fault_of(error, folder)
    assert fault is None


def test_samples_whose_names_are_no_utf8_are_read(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.bin")
    (tmp_path / name).write_bytes(b"one")
    assert headrace.open(tmp_path)[0] == {"path": name, "data": b"one"}


@pytest.mark.parametrize("format", FORMATS)
def test_what_may_not_be_read_is_named(format: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = write(format, path_of(format, folder), [usual(format)])
        read(path)  # imports what is needed
        for file in damage.files_below(folder):
            file.chmod(0)
        text = as_nobody(lambda: damage.read_all(path, format))
    assert "ermission denied" in text, text
    assert name in text, text


def as_nobody(action: Callable[[], object]) -> str:
    """Calls a function as a user who may do little. Returns the error, or that there was none."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "no error"
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            action()
        except (FormatError, DatasetError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001
            text = f"wrong: {type(error).__name__}: {error}"
        finally:
            os.write(writing, text.encode("utf-8", "replace")[:4000])
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


def test_a_head_that_is_no_python_is_not_taken_for_a_pickle(tmp_path: Path) -> None:
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**99,), }"
    size = len(head).to_bytes(2, "little")
    (tmp_path / "data.npy").write_bytes(b"\x93NUMPY\x01\x00" + size + head + bytes(64))
    with pytest.raises(FormatError) as caught:
        open_reader(tmp_path / "data.npy")
    assert "restore the file" in str(caught.value)
    assert "allow_pickle" not in str(caught.value)
