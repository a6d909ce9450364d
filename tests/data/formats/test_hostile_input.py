"""Data that want to run code, to reach other files, or to take all memory."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import headrace
from headrace.core.errors import FormatError, UsageError
from headrace.data.formats.columns import Block, ragged_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.manifest import manifest_path
from tests.data.formats import damage
from tests.data.formats.samples import FORMATS, path_of, read, usual, write
from tests.pairs import in_turn


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def refused(path: Path, format: str | None = None) -> str:
    """Reads everything, which must be refused. Returns what the error says."""
    with pytest.raises(damage.ALLOWED) as caught:
        damage.read_all(path, format)
    assert damage.fault_of(caught.value, path.parent) is None
    return str(caught.value)


# -- pickles -----------------------------------------------------------------------------------------------------------


def test_pickles_in_pt_files_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    torch.save({"x": Bomb(tmp_path / "boom")}, tmp_path / "data" / "0.pt")
    (tmp_path / "data" / "1.pt").write_bytes(pickle.dumps({"x": Bomb(tmp_path / "boom")}, protocol=2))
    assert "trust=True" in refused(tmp_path / "data")
    (tmp_path / "data" / "0.pt").unlink()
    refused(tmp_path / "data")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("form", ["npy", "memmap", "npz", "tar"])
def test_arrays_of_objects_are_not_opened(form: str, tmp_path: Path) -> None:
    bomb = np.array([Bomb(tmp_path / "boom")], object)
    stream = io.BytesIO()
    np.save(stream, bomb, allow_pickle=True)
    if form == "memmap":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "x.npy").write_bytes(stream.getvalue())
        refused(tmp_path / "data")
    elif form == "npy":
        (tmp_path / "data.npy").write_bytes(stream.getvalue())
        refused(tmp_path / "data.npy")
    elif form == "npz":
        np.savez(tmp_path / "data.npz", allow_pickle=True, x=bomb)
        refused(tmp_path / "data.npz")
    else:
        add_to_tar(tmp_path / "data.tar", {"0.npy": stream.getvalue()})
        refused(tmp_path / "data.tar")
    assert not (tmp_path / "boom").exists()


def add_to_tar(path: Path, files: dict[str, bytes]) -> None:
    """Writes a tar file."""
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("ending", ["pkl", "pickle", "pyd", "pth", "pt", "x.pkl"])
def test_pickles_in_tar_shards_are_refused_and_only_bytes_with_trust(ending: str, tmp_path: Path) -> None:
    data = pickle.dumps(Bomb(tmp_path / "boom"))
    add_to_tar(tmp_path / "data.tar", {f"0.{ending}": data})
    assert "pickles" in refused(tmp_path / "data.tar")
    assert headrace.open(tmp_path / "data.tar", trust=True)[0][ending] == data
    assert not (tmp_path / "boom").exists()


def test_pickles_in_a_later_shard_are_refused_too(tmp_path: Path) -> None:
    add_to_tar(tmp_path / "part-0.tar", {"0.bin": b"sound"})
    add_to_tar(tmp_path / "part-1.tar", {"1.pkl": pickle.dumps(Bomb(tmp_path / "boom"))})
    refused(tmp_path)
    assert not (tmp_path / "boom").exists()


# -- other files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "name"), in_turn(FORMATS, ["../secret", "/etc/passwd", "a/../../secret"]))
def test_a_manifest_that_names_files_outside_is_damaged(format: str, name: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path), [usual(format)])
    manifest = manifest_path(path)
    plain = json.loads(manifest.read_text())
    plain["files"][name] = [1, 1]
    manifest.write_text(json.dumps(plain))
    assert "manifest" in refused(path)


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/secret", "..", ""])
def test_columns_and_samples_cannot_be_written_outside(name: str, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    for format in FORMATS:
        path = path_of(format, room)
        samples = [
            Block(Schema((Field(name, "fixed", np.dtype(np.int32)),)), {name: np.arange(3, dtype=np.int32)}),
            Block(
                Schema((Field("path", "text"), Field("data", "bytes"))),
                {
                    "path": ragged_from(Field("path", "text"), [name]),
                    "data": ragged_from(Field("data", "bytes"), [b"x"]),
                },
            ),
            Block(
                Schema((Field("__key__", "text"), Field("data", "bytes"))),
                {"__key__": ragged_from(Field("k", "text"), [name]), "data": ragged_from(Field("d", "bytes"), [b"x"])},
            ),
        ]
        for block in samples:
            try:
                write(format, path, [block])
            except (FormatError, UsageError) as error:
                assert "found:" in str(error)
            assert [one.name for one in tmp_path.iterdir()] == ["room"]
            assert not any("partial" in one.name for one in room.iterdir()), format


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "sub/../../secret.arrow"])
def test_a_saved_dataset_that_names_files_outside_is_refused(name: str, tmp_path: Path) -> None:
    path = write("huggingface", tmp_path / "data", [usual("huggingface")])
    source = next(path.glob("*.arrow"))
    (tmp_path / "secret.arrow").write_bytes(source.read_bytes())
    state = json.loads((path / "state.json").read_text())
    state["_data_files"] = [{"filename": name}]
    (path / "state.json").write_text(json.dumps(state))
    manifest_path(path).unlink()
    assert "elsewhere" in refused(path)


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_hdf5_data_in_other_files_are_not_mapped(where: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret.bin").write_bytes(b"secret!!" * 4)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        name = str(tmp_path / "secret.bin") if where == "outside" else "secret.bin"
        file.create_dataset("x", (32,), np.uint8, external=[(name, 0, 32)])
        file["y"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/y")
    try:
        data = read(tmp_path / "data.h5")
    except damage.ALLOWED:
        return
    assert b"secret" not in bytes(np.asarray(data.columns["x"]))


# -- memory ------------------------------------------------------------------------------------------------------------

HUGE = 1 << 40


def npy_header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    """Returns the head of an .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("shape", [(HUGE,), (1 << 62, 4), (3, HUGE), (1 << 20, 1 << 20), (0, 1 << 62), (2**70,)])
def test_npy_files_that_promise_too_much_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    data = npy_header(shape) + b"\0" * 80
    (tmp_path / "data.npy").write_bytes(data)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.npy").write_bytes(data)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / f"{compression}.npz", "w", compression) as archive:
            archive.writestr("x.npy", data)
    add_to_tar(tmp_path / "data.tar", {"0.npy": data})
    for path in ("data.npy", "folder", f"{zipfile.ZIP_STORED}.npz", f"{zipfile.ZIP_DEFLATED}.npz", "data.tar"):
        if 0 in shape:
            read_or_refused(tmp_path / path)
        else:
            refused(tmp_path / path)


def read_or_refused(path: Path) -> None:
    """Reads; an error must help."""
    try:
        damage.read_all(path, None)
    except Exception as error:  # noqa: BLE001 - which ones there are is the question
        assert damage.fault_of(error, path.parent) is None, repr(error)


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("shape", [(0xFFFFFFFF,), (0xFFFFFFFF,) * 3, (1 << 30, 1 << 30), (5, 0xFFFFFFFF), (1,) * 60])
def test_idx_files_that_promise_too_much_are_refused(shape: tuple[int, ...], gz: str, tmp_path: Path) -> None:
    data = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + b"\0" * 80
    path = tmp_path / f"x-idx{min(len(shape), 9)}-ubyte{gz}"
    path.write_bytes(zlib.compress(data, wbits=31) if gz else data)
    refused(path, "idx")


def test_a_gzip_bomb_is_read_no_further_than_its_header_says(tmp_path: Path) -> None:
    data = struct.pack(">BBBBI", 0, 0, 8, 1, 10) + bytes(50 << 20)
    (tmp_path / "x-idx1-ubyte.gz").write_bytes(zlib.compress(data, wbits=31))
    assert "not as long" in refused(tmp_path / "x-idx1-ubyte.gz")


@pytest.mark.parametrize(
    "size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-1\0\0\0\0\0\0\0\0\0\0", b"9" * 12]
)
def test_tar_files_of_huge_size_are_refused(size: bytes, tmp_path: Path) -> None:
    add_to_tar(tmp_path / "data.tar", {"0.bin": b"x", "1.bin": b"y"})
    data = bytearray((tmp_path / "data.tar").read_bytes())
    data[124:136] = size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "data.tar").write_bytes(data)
    refused(tmp_path / "data.tar")


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_header((HUGE,), "|u1") + bytes(1 << 20))
    data = (tmp_path / "data.npz").read_bytes()
    size = struct.pack("<I", len(npy_header((HUGE,), "|u1")) + (1 << 20))
    (tmp_path / "data.npz").write_bytes(data.replace(size, b"\xfe\xff\xff\xff"))
    refused(tmp_path / "data.npz")


def test_manifests_of_deep_or_strange_json_are_damaged(tmp_path: Path) -> None:
    path = write("memmap", tmp_path / "data", [usual("memmap")])
    manifest = manifest_path(path)
    sound = json.loads(manifest.read_text())
    strange: list[Any] = ["[" * 100_000, "[]", "null", "1", '"x"', "{}", "\xff", "{" * 5]
    for key, value in (
        ("length", -1), ("length", 1e400), ("length", "x"), ("length", None), ("schema", 1), ("schema", [1]),
        ("schema", [{"name": "x", "kind": "fixed", "dtype": "O", "shape": []}]), ("files", []), ("files", {"x": 1}),
        ("schema", [{"name": "x", "kind": "fixed", "dtype": "f4", "shape": [1e400]}]), ("headrace", 2),
        ("schema", [{"name": "x", "kind": "fixed", "dtype": "(1000000,1000000)f8", "shape": []}]), ("extra", 5),
        ("schema", [{"name": "x", "kind": "fixed", "dtype": "f4", "shape": [-1]}]),
    ):  # fmt: skip
        strange.append(json.dumps(sound | {key: value}))
    for text in strange:
        manifest.write_text(text, "latin-1")
        assert "headrace" in refused(path)


def test_a_manifest_with_another_length_is_noticed(tmp_path: Path) -> None:
    for format in FORMATS:
        folder = tmp_path / format
        folder.mkdir()
        path = write(format, path_of(format, folder), [usual(format)])
        manifest = manifest_path(path)
        for length in (19, 21, 1 << 40):
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"length": length}))
            try:
                samples = damage.read_all(path, None)
            except Exception as error:  # noqa: BLE001 - which ones there are is the question
                assert damage.fault_of(error, folder) is None, (format, repr(error))
            else:
                assert len(samples) in (19, 20), format


@pytest.mark.parametrize(
    "offsets", [[0, 5, 3, 30], [0, -1, 4, 30], [0, 1 << 40, 5, 30], [0, 31, 31, 30], [1, 2, 3, 30]]
)
def test_offsets_that_make_no_sense_are_refused(offsets: list[int], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.values.npy", np.arange(30))
    np.save(tmp_path / "data" / "x.offsets.npy", np.array(offsets))
    assert "offsets" in refused(tmp_path / "data")
    values = pa.LargeListArray.from_buffers(
        pa.large_list(pa.int64()), 3, [None, pa.py_buffer(np.array(offsets))], children=[pa.array(np.arange(30))]
    )
    with pa.ipc.new_file(str(tmp_path / "data.arrow"), pa.schema([("x", values.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([values], names=["x"]))
    if offsets[0] == 0:
        refused(tmp_path / "data.arrow")
