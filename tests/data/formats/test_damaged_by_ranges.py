"""Damaged and hostile arrays in a store are errors that name their URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

import headrace
from headrace.core.errors import FormatError, StorageError, UsageError
from headrace.data.formats.columns import remote_arrays
from tests.data.formats.by_ranges import store
from tests.servers.faulty import FaultyServer


def damaged_head(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[20:40] = b"\0" * 20
    file.write_bytes(data)


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def promise(file: Path) -> None:
    """Has the head promise far more than there is."""
    with file.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50, 8)})
        out.write(b"x" * 1000)


@pytest.mark.parametrize("damage", [damaged_head, cut_off, promise], ids=lambda damage: str(damage.__name__))
def test_a_damaged_array_is_refused_by_its_url(damage: Callable[[Path], None], faulty_server: FaultyServer) -> None:
    (faulty_server.folder / "bucket").mkdir()
    np.save(faulty_server.folder / "bucket" / "a.npy", np.arange(600.0).reshape(100, 6))
    damage(faulty_server.folder / "bucket" / "a.npy")
    with pytest.raises(FormatError, match=r"s3://bucket/a\.npy"):
        headrace.open("s3://bucket/a.npy", options=faulty_server.s3_options)


@pytest.mark.usefixtures("everything_by_ranges")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("edges", [[0, 9, 5, 20], [0, -4, 5, 20], [0, 30, 40, 20]])
def test_offsets_that_lead_astray_are_refused(
    edges: list[int], kept: bool, faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(remote_arrays, "OFFSETS", 0)
    folder = faulty_server.folder / "bucket" / "data"
    folder.mkdir(parents=True)
    np.save(folder / "x.values.npy", np.arange(20))
    np.save(folder / "x.offsets.npy", np.array(edges))
    there = headrace.open("s3://bucket/data", options=faulty_server.s3_options)
    with pytest.raises(FormatError, match="offsets are damaged") as caught:
        there.__getitems__([1, 2])
    assert "s3://bucket/data" in str(caught.value)


def test_offsets_with_wrong_ends_are_refused_when_they_are_opened(faulty_server: FaultyServer) -> None:
    folder = faulty_server.folder / "bucket" / "data"
    folder.mkdir(parents=True)
    np.save(folder / "x.values.npy", np.arange(20))
    np.save(folder / "x.offsets.npy", np.array([0, 5, 21]))
    with pytest.raises(FormatError, match="from 0 to 21"):
        headrace.open("s3://bucket/data", options=faulty_server.s3_options)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["arrow", "arrow compressed", "arrow stream"])
@pytest.mark.usefixtures("everything_by_ranges")
def test_damaged_arrow_files_are_errors_that_name_them(form: str, faulty_server: FaultyServer) -> None:
    name = store(form, faulty_server.folder / "bucket", 60)
    sound = (faulty_server.folder / "bucket" / name).read_bytes()
    random = np.random.default_rng(9)
    refused = 0
    for _ in range(15):
        data = bytearray(sound)
        for at in random.integers(0, len(data), 4).tolist():
            data[at] = int(random.integers(256))
        (faulty_server.folder / "bucket" / name).write_bytes(data)
        try:
            there = headrace.open(f"s3://bucket/{name}", options=faulty_server.s3_options)
            there.__getitems__(range(len(there))[:200])
        except (FormatError, UsageError, UnicodeDecodeError) as error:
            refused += 1
            if isinstance(error, FormatError):
                assert name in str(error)
        except UserWarning:
            pass

    assert refused


def test_a_batch_that_would_unfold_to_far_too_much_is_refused(
    faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = faulty_server.folder / "bucket"
    folder.mkdir()
    table = pa.table({"x": pa.array(np.zeros(2_000_000))})
    with pa.ipc.new_file(
        str(folder / "bomb.arrow"), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as file:
        file.write_table(table)

    monkeypatch.setattr("headrace.data.formats.guards.limits.FREE", 1 << 20)
    monkeypatch.setattr("headrace.data.formats.arrow.ipc_ranges.FREE", 1 << 30)
    there = headrace.open("s3://bucket/bomb.arrow", options=faulty_server.s3_options)
    with pytest.raises(FormatError, match="asks for far more than it holds"):
        there.__getitems__([1])


def test_a_flat_file_of_odd_length_is_refused(faulty_server: FaultyServer) -> None:
    faulty_server.put("bucket", "train.bin", b"x" * 101)
    with pytest.raises(FormatError, match="no flat file of such numbers"):
        headrace.open_tokens("s3://bucket/train.bin", dtype="uint16", options=faulty_server.s3_options)


def test_an_object_that_was_replaced_meanwhile_is_an_error(faulty_server: FaultyServer) -> None:
    (faulty_server.folder / "bucket").mkdir()
    file = faulty_server.folder / "bucket" / "a.npy"
    np.save(file, np.arange(1_000_000.0))
    there = headrace.open("s3://bucket/a.npy", options=faulty_server.s3_options)
    np.save(file, np.arange(1_000_000.0) + 1)
    with pytest.raises(StorageError, match=r"a\.npy"):
        there.__getitems__([5])
