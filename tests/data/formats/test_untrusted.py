"""Data of strangers: nothing of them runs, and nothing is written elsewhere; for what they take, see `test_bombs`."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace
from headrace.core.errors import FormatError, HeadraceError, SampleError, UsageError
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from tests.data.formats import bombs, damage
from tests.data.formats.bombs import MEGA


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def saved_array(mark: Path) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Payload(mark)], object), allow_pickle=True)
    return stream.getvalue()


def in_pt(room: Path, mark: Path) -> Path:
    return bombs.pt(room, {"x": Payload(mark)})


def in_old_pt(room: Path, mark: Path) -> Path:
    path = bombs.pt(room, 1)
    torch.save({"x": Payload(mark)}, path / "0.pt", _use_new_zipfile_serialization=False)
    return path


def in_npy(room: Path, mark: Path) -> Path:
    (room / "data.npy").write_bytes(saved_array(mark))
    return room / "data.npy"


def in_memmap(room: Path, mark: Path) -> Path:
    (room / "data").mkdir()
    (room / "data" / "x.npy").write_bytes(saved_array(mark))
    return room / "data"


def in_npz(room: Path, mark: Path) -> Path:
    with zipfile.ZipFile(room / "data.npz", "w") as archive:
        archive.writestr("x.npy", saved_array(mark))
    return room / "data.npz"


def in_npy_in_tar(room: Path, mark: Path) -> Path:
    return bombs.tar(room, {"0.npy": saved_array(mark)})


def in_tar(room: Path, mark: Path) -> Path:
    return bombs.tar(room, {"0.pyd": pickle.dumps(Payload(mark))})


def in_tensordict(room: Path, mark: Path) -> Path:
    """What tensordict writes for a value that is no tensor, in a folder below."""
    path = bombs.tensordict(room, [4, 2])
    (path / "n").mkdir()
    (path / "n" / "other.pickle").write_bytes(pickle.dumps({"data": Payload(mark)}))
    kind = "<class 'tensordict.tensorclass.NonTensorData'>"
    about = {"_type": kind, "_metadata": None, "_is_non_tensor": True}
    (path / "n" / "meta.json").write_text(json.dumps(about))
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"n": {"type": "NonTensorData"}}))
    return path


def in_class_of_tensordict(room: Path, mark: Path) -> Path:
    """A class that the data name, which is imported."""
    (room / "payload.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    path = bombs.tensordict(room, [4, 2])
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"_type": "payload.Payload", "_class": "payload:Payload"}))
    return path


def in_hdf5_references(room: Path, mark: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(room / "data.h5", "w") as file:
        file.create_dataset("x", (1,), h5py.ref_dtype)[0] = file.ref
    return room / "data.h5"


def in_hdf5_pointers(room: Path, mark: Path) -> Path:
    """Eight bytes that say that NumPy shall take them for the address of an object."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(room / "data.h5", "w") as file:
        kind = h5py.h5t.create(h5py.h5t.OPAQUE, 8)
        kind.set_tag(b"NUMPY:O")
        space = h5py.h5s.create_simple((1,))
        h5py.h5d.create(file.id, b"x", kind, space)
    return room / "data.h5"


def in_image(room: Path, mark: Path) -> Path:
    """PostScript, which Pillow has Ghostscript run."""
    (room / "data").mkdir()
    (room / "data" / "0.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    (room / "gs").write_text(f"#!/bin/sh\nmkdir '{mark}'\n")
    (room / "gs").chmod(0o755)
    return room / "data"


REFUSED = (
    in_pt, in_old_pt, in_npy, in_memmap, in_npz, in_npy_in_tar, in_tar, in_tensordict, in_class_of_tensordict,
    in_hdf5_references, in_hdf5_pointers, in_image,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")  # what a library unpickles with a warning, it unpickles
@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_could_run_is_refused_and_a_fix_named(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    path = make(tmp_path, tmp_path / "mark")
    with pytest.raises((FormatError, SampleError)) as caught:
        headrace.open(path)[0]
    assert not (tmp_path / "mark").exists()
    assert re.search(r"trust=True|allow_pickle|trust the author|into a file of its own|convert it", str(caught.value))


def in_lmdb(room: Path, mark: Path) -> Path:
    library = pytest.importorskip("lmdb")
    with library.open(str(room / "data"), map_size=MEGA) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"0", pickle.dumps(Payload(mark)))
    return room / "data"


def table_of(mark: Path) -> pa.Table:
    """A column whose type is an extension, that earlier versions of pyarrow made by unpickling what stands with it."""
    about = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Payload(mark))}
    field = pa.field("value", pa.binary(), metadata=about)
    return pa.table([pa.array([pickle.dumps(Payload(mark))])], schema=pa.schema([field]))


def in_arrow(room: Path, mark: Path) -> Path:
    with pa.OSFile(str(room / "data.arrow"), "w") as file, pa.ipc.new_file(file, table_of(mark).schema) as writer:
        writer.write_table(table_of(mark))
    return room / "data.arrow"


def in_parquet(room: Path, mark: Path) -> Path:
    pq.write_table(table_of(mark), room / "data.parquet")
    return room / "data.parquet"


def in_saved_dataset(room: Path, mark: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"value": [pickle.dumps(Payload(mark))]}).save_to_disk(str(room / "data"))
    return room / "data"


@pytest.mark.parametrize("make", [in_lmdb, in_arrow, in_parquet, in_saved_dataset], ids=lambda make: make.__name__)
def test_pickles_among_bytes_come_as_bytes(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path, tmp_path / "mark")
    for trust in (False, True):
        assert headrace.open(path, trust=trust)[0]["value"] == pickle.dumps(Payload(tmp_path / "mark"))
    assert not (tmp_path / "mark").exists()


# -- places ------------------------------------------------------------------------------------------------------------


def everything_below(folder: Path) -> set[str]:
    """Returns the names of all files and folders."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def inside(names: set[str], folder: str) -> bool:
    """Tells whether all lie in the target, or where what was begun waits for another try, and none has a bad name."""
    places = (f"{folder}target", f"{folder}.target.packing")
    return all(name.startswith(places) and "evil" not in name for name in names)


def hostile_tar(room: Path) -> Path:
    """Members whose names lead out of any folder, and links that do."""
    names = ("../evil", "../../evil", "/tmp/evil-of-headrace", "a/../../evil", "sound")
    path = bombs.tar(room, {f"{name}{number}.bin": b"data" for number, name in enumerate(names)})
    with tarfile.open(path, "a") as archive:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(f"link{number}.bin")
            info.type, info.linkname = kind, "../../etc/passwd"
            archive.addfile(info)
    return path


def test_opening_a_shard_writes_nothing_and_follows_no_links(tmp_path: Path) -> None:
    path = hostile_tar(tmp_path)
    samples = damage.read_all(path, None)
    assert [sample["bin"] for sample in samples] == [b"data"] * 5
    assert everything_below(tmp_path) == {"data.tar"}
    assert not Path("/tmp/evil-of-headrace4.bin").exists()


@pytest.mark.parametrize("form", ["memmap", "webdataset", "folder", "pt", "lmdb", "arrow", "hdf5"])
def test_packing_a_hostile_shard_stays_in_the_target(form: str, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    source = hostile_tar(room)
    before = everything_below(tmp_path)
    columns = ("data",) if form == "folder" else None
    if form == "folder":  # its content is named `data`
        source.unlink()
        bombs.tar(room, {f"../{number}.data": b"data" for number in range(3)})
    try:
        pack(str(source), str(room / "target"), PackOptions(format=form, columns=columns), workers=1)
    except (FormatError, UsageError) as error:
        assert form == "webdataset", error
    new = everything_below(tmp_path) - before
    assert inside(new, "room/"), new
    assert form == "webdataset" or new


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil-of-headrace", "a/../../evil", "headrace.json", "a\0b", "..", ""]
)
def test_packing_a_folder_refuses_names_that_are_not_its_own(name: str, tmp_path: Path) -> None:
    source = tmp_path / "data.arrow"
    table = pa.table({"path": ["sound", name], "data": [b"one", b"two"]})
    with pa.OSFile(str(source), "w") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(HeadraceError, match="found:"):
        pack(str(source), str(tmp_path / "target"), PackOptions(format="folder"), workers=1)
    assert inside(everything_below(tmp_path) - {"data.arrow"}, "")
    assert not Path("/tmp/evil-of-headrace").exists()


def test_labels_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    np.save(path / "label.npy", np.zeros(1, np.int64))
    np.save(path / "data.bytes.npy", np.frombuffer(b"abc", np.uint8))
    np.save(path / "data.offsets.npy", np.array([0, 3]))
    schema = [
        {"name": "label", "kind": "fixed", "dtype": "int64", "shape": [], "labels": ["../../evil"]},
        {"name": "data", "kind": "bytes"},
    ]
    about = {"headrace": 1, "format": "memmap", "length": 1, "schema": schema, "files": {}}
    (path / "headrace.json").write_text(json.dumps(about))
    before = everything_below(tmp_path)
    with pytest.raises(FormatError, match="outside"):
        pack(str(path), str(tmp_path / "target"), PackOptions(format="folder"), workers=1)
    assert inside(everything_below(tmp_path) - before, "")


def test_a_tensordict_that_names_entries_elsewhere_is_refused(tmp_path: Path) -> None:
    path = bombs.tensordict(tmp_path, [4, 2])
    (path / "x.memmap").rename(tmp_path / "x.memmap")
    meta = json.loads((path / "meta.json").read_text())
    meta["../x"] = meta.pop("x")
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(FormatError, match="other folders"):
        headrace.open(path)
