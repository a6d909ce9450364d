"""What we write, h5py, lmdb, torch, tensordict, webdataset and datasets read; what they write, we read."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.data.formats.columns import Ragged
from headrace.data.formats.registry import open_reader
from tests.data.formats.columns import CLASSES, IMAGES, RAW, TOKENS, VALUES, WORDS, block, reopened, rows
from tests.data.formats.samples import LABELS, assert_same_numbers, halves, read, write

# -- HDF5 --------------------------------------------------------------------------------------------------------------


def test_h5py_reads_what_we_write(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = write("hdf5", tmp_path / "data.h5", halves(block(image=IMAGES, value=VALUES, words=WORDS)))
    with h5py.File(path) as file:
        assert np.array_equal(file["image"][()], IMAGES)
        assert np.array_equal(file["value"][5:9], VALUES[5:9])
        start, stop = file["words.offsets"][1:3]
        assert file["words.utf8"][start:stop].tobytes().decode() == WORDS[1]


@pytest.mark.parametrize("chunked", [False, True])
def test_datasets_of_h5py_are_read(chunked: bool, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    how: dict[str, Any] = {"chunks": (7, 5, 4, 3), "compression": "gzip", "shuffle": True} if chunked else {}
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("image", data=IMAGES, **how)
        file.create_dataset("deep/value", data=VALUES.astype(">f4"))
        if chunked:
            file.create_dataset("word", data=[one.encode() for one in WORDS], dtype=h5py.string_dtype())
            file.create_dataset("short", data=np.array([one.encode()[:8] for one in WORDS], "S8"))
            ragged = file.create_dataset("tokens", (30,), h5py.vlen_dtype(np.int32))
            for number, tokens in enumerate(TOKENS):
                ragged[number] = tokens
    data = read(tmp_path / "data.h5")
    assert_same_numbers(data.columns["image"], IMAGES)
    assert_same_numbers(data.columns["deep/value"], VALUES)
    if chunked:
        assert rows(data, "word") == WORDS
        assert rows(data, "short") == [one.encode()[:8].decode("utf-8", "surrogateescape") for one in WORDS]
        assert [one.tolist() for one in rows(data, "tokens")] == [one.tolist() for one in TOKENS]
    keys = np.array([29, 0, 7, 7, 3])
    assert np.array_equal(open_reader(tmp_path / "data.h5").fetch(keys, ["image"]).columns["image"], IMAGES[keys])


# -- LMDB --------------------------------------------------------------------------------------------------------------


def test_lmdb_reads_what_we_write(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    path = write("lmdb", tmp_path / "data", halves(block(image=IMAGES, value=VALUES, words=WORDS)))
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert transaction.get(b"000000012.image") == IMAGES[12].tobytes()
        assert np.frombuffer(transaction.get(b"000000012.value"), "<f4")[0] == VALUES[12]
        assert transaction.get(b"000000001.words").decode() == WORDS[1]


@pytest.mark.parametrize("subdir", [True, False])
def test_a_database_of_lmdb_has_keys_and_values(subdir: bool, tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    path = tmp_path / "theirs.lmdb"
    with lmdb.open(str(path), subdir=subdir) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(RAW):
            transaction.put(f"key {number:04d}".encode(), value)
        transaction.put(b"zz large", bytes(20_000))
    data = read(path)
    assert rows(data, "key") == [f"key {number:04d}".encode() for number in range(30)] + [b"zz large"]
    assert rows(data, "value") == [*RAW, bytes(20_000)]
    assert rows(open_reader(path).fetch(np.array([3, 3, 0]), ["value"]), "value") == [RAW[3], RAW[3], RAW[0]]


# -- torch, TensorDict -------------------------------------------------------------------------------------------------


def test_torch_loads_our_samples_without_trust(tmp_path: Path) -> None:
    path = write(
        "pt", tmp_path / "data", halves(block(image=IMAGES, value=VALUES, words=WORDS, tokens=TOKENS, raw=RAW))
    )
    sample = torch.load(path / "000000012.pt", weights_only=True)
    assert torch.equal(sample["image"], torch.from_numpy(IMAGES[12]))
    assert sample["value"].item() == VALUES[12]
    assert sample["words"] == WORDS[12]
    assert bytes(sample["raw"].tolist()) == RAW[12]


def test_samples_that_torch_saved_are_read(tmp_path: Path) -> None:
    for number in range(12):
        sample = {
            "x": torch.from_numpy(IMAGES[number]),
            "y": int(CLASSES[number]),
            "t": torch.from_numpy(TOKENS[number]),
        }
        torch.save(sample | {"word": WORDS[number], "f": 0.5}, tmp_path / f"{number:04d}.pt")
    data = read(tmp_path)
    assert_same_numbers(data.columns["x"], IMAGES[:12])
    assert data.columns["y"].tolist() == CLASSES[:12].tolist()
    assert [one.tolist() for one in rows(data, "t")] == [one.tolist() for one in TOKENS[:12]]
    assert rows(data, "word") == WORDS[:12]
    (tmp_path / "alone").mkdir()
    for number in range(3):
        torch.save(torch.from_numpy(IMAGES[number]), tmp_path / "alone" / f"{number}.pth")
    assert_same_numbers(read(tmp_path / "alone").columns["data"], IMAGES[:3])


def test_tensordict_loads_what_we_write_and_we_what_it_maps(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    path = write("tensordict", tmp_path / "ours", halves(block(image=IMAGES, value=VALUES)))
    for load in (tensordict.TensorDict.load_memmap, tensordict.load_memmap):
        ours = load(str(path))
        assert ours.batch_size == torch.Size([30])
        assert torch.equal(ours["image"], torch.from_numpy(IMAGES))
    inner = tensordict.TensorDict({"value": torch.from_numpy(VALUES)}, [30])
    tensordict.TensorDict({"image": torch.from_numpy(IMAGES), "in": inner}, [30]).memmap(str(tmp_path / "theirs"))
    data = read(tmp_path / "theirs")
    assert_same_numbers(data.columns["image"], IMAGES)
    assert_same_numbers(data.columns["in.value"], VALUES)


# -- WebDataset --------------------------------------------------------------------------------------------------------


def test_webdataset_reads_what_we_write(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    data = block(jpg=[one or b"x" for one in RAW], cls=CLASSES, txt=WORDS, value=VALUES, tokens=TOKENS, words=WORDS)
    path = write("webdataset", tmp_path / "data.tar", halves(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(wds.WebDataset(str(path), shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == [f"{number:09d}" for number in range(30)]
    assert [sample["cls"] for sample in samples] == CLASSES.tolist()
    assert [sample["txt"] for sample in samples] == WORDS
    assert [sample["words.txt"] for sample in samples] == WORDS
    assert [sample["value.npy"] for sample in samples] == VALUES.tolist()
    assert [sample["jpg"] for sample in samples] == [one or b"x" for one in RAW]


def test_shards_of_webdataset_are_read(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with wds.ShardWriter(str(tmp_path / "part-%03d.tar"), maxcount=8, verbose=0) as sink:
            for number in range(30):
                name = f"{'d' * 120}/{number:04d}" if number % 4 == 0 else f"a/{number:04d}"
                sample = {"__key__": name, "bin": RAW[number], "cls": int(CLASSES[number]), "txt": WORDS[number]}
                sink.write(sample | {"npy": IMAGES[number], "json": {"n": number}})
    for uri in (tmp_path, tmp_path / "part-{000..003}.tar", tmp_path / "part-*.tar"):
        data = read(uri)
        assert rows(data, "__key__")[:2] == [f"{'d' * 120}/0000", "a/0001"]
        assert rows(data, "bin") == RAW
        assert data.columns["cls"].tolist() == CLASSES.tolist()
        assert rows(data, "txt") == WORDS
        assert_same_numbers(data.columns["npy"], IMAGES)
        assert [json.loads(one)["n"] for one in rows(data, "json")] == list(range(30))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_form_of_tar_is_read(form: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "data.tar", "w", format=form) as archive:
        for number, value in enumerate(RAW):
            folder = "é" * 20 + "/" + ("long" * 15 if form == tarfile.USTAR_FORMAT else "long" * 60)
            info = tarfile.TarInfo(f"{folder}/{number:04d}.bin")
            info.size = len(value)
            archive.addfile(info, io.BytesIO(value))
    data = read(tmp_path / "data.tar")
    assert rows(data, "bin") == RAW
    assert rows(data, "__key__")[3] == f"{folder}/0003"


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def hugging_face(datasets: Any) -> Any:
    """Returns a dataset of the package."""
    features = datasets.Features(
        {
            "value": datasets.Value("float32"),
            "word": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list(LABELS)),
            "tokens": datasets.List(datasets.Value("int32")),
        }
    )
    tokens = [one.tolist() for one in TOKENS]
    plain = {"value": VALUES.tolist(), "word": WORDS, "label": CLASSES.tolist(), "tokens": tokens}
    return datasets.Dataset.from_dict(plain, features=features)


def test_datasets_saved_to_disk_are_read_and_ours_loaded(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    hugging_face(datasets).save_to_disk(str(tmp_path / "theirs"), num_shards=3)
    data = read(tmp_path / "theirs")
    assert data.schema["label"].labels == LABELS
    assert rows(data, "word") == WORDS
    assert [one.tolist() for one in rows(data, "tokens")] == [one.tolist() for one in TOKENS]
    whole = block(image=IMAGES, words=WORDS, tokens=TOKENS, value=VALUES)
    ours = datasets.load_from_disk(str(write("huggingface", tmp_path / "ours", halves(whole)))).with_format("numpy")
    assert np.array_equal(ours["image"][:], IMAGES)
    assert list(ours["words"]) == WORDS
    assert_same_numbers(reopened(tmp_path / "ours").columns["image"], IMAGES)


def test_a_dataset_object_is_opened_in_its_own_order_without_a_copy(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    theirs = hugging_face(datasets)
    reader = headrace.open(theirs).reader
    column = reader.column("value")
    chunk = theirs.data.table["value"].chunk(0)
    address = chunk.buffers()[1].address
    assert isinstance(column, np.ndarray)
    assert address <= column.ctypes.data < address + chunk.buffers()[1].size
    text = reader.column("word")
    assert isinstance(text, Ragged)
    assert text.values.ctypes.data == theirs.data.table["word"].chunk(0).buffers()[2].address
    assert headrace.open(theirs).schema["label"].labels == LABELS
    for changed in (
        theirs.select([5, 5, 1, 29]),
        theirs.shuffle(seed=3),
        theirs.select(range(4, 20)),
        theirs.shard(3, 1),
    ):
        opened = headrace.open(changed)
        wanted = changed[:]
        assert len(opened) == len(changed)
        got = opened.__getitems__(list(range(len(changed))))
        assert [one["word"] for one in got] == wanted["word"]
        assert [float(one["value"]) for one in got] == wanted["value"]
        assert [one["tokens"].tolist() for one in got] == wanted["tokens"]
        assert words_of(opened.stream()) == sorted(wanted["word"])


def words_of(samples: Any) -> list[str]:
    """Returns the words of samples, sorted."""
    return sorted(sample["word"] for sample in samples)


# -- IDX ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gzipped", [False, True])
def test_files_as_those_of_mnist_are_read(gzipped: bool, tmp_path: Path) -> None:
    for half, images in (("train", IMAGES[:20, ..., 0]), ("t10k", IMAGES[20:, ..., 0])):
        for name, array in (("images-idx3", images), ("labels-idx1", CLASSES[: len(images)].astype(np.uint8))):
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            data = head + array.tobytes()
            file = tmp_path / f"{half}-{name}-ubyte{'.gz' if gzipped else ''}"
            file.write_bytes(gzip.compress(data) if gzipped else data)
    train, test = read(tmp_path / "train"), read(tmp_path / "t10k")
    assert train.schema.names == ("image", "label")
    assert_same_numbers(train.columns["image"], IMAGES[:20, ..., 0])
    assert_same_numbers(test.columns["image"], IMAGES[20:, ..., 0])
    assert test.columns["label"].tolist() == CLASSES[:10].tolist()


def test_our_idx_files_are_as_their_description_says(tmp_path: Path) -> None:
    path = write("idx", tmp_path / "data", halves(block(image=IMAGES[..., 0], value=VALUES)))
    data = (path / "images-idx3-ubyte").read_bytes()
    assert data == struct.pack(">BBBBIII", 0, 0, 8, 3, 30, 5, 4) + IMAGES[..., 0].tobytes()
    data = (path / "value-idx1-float").read_bytes()
    assert data == struct.pack(">BBBBI", 0, 0, 13, 1, 30) + VALUES.astype(">f4").tobytes()
