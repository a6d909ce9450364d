"""`headrace prepare`: what it makes can be read and is right, and what is there is not made twice."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from headrace.cli.prepare import TerminalProgress, run_prepare
from headrace.core.errors import DatasetError, FormatError, UsageError
from headrace.data.formats import memmap
from headrace.data.prepare import datasets
from headrace.data.prepare.datasets import CHECKSUMS, CLASSES, DatasetCopy, prepare_fashion_mnist, prepare_npz_demo
from headrace.data.prepare.download import DownloadError, Patience
from tests.data.prepare.server import Mirror, md5, serving

SIZES = {"train": 50, "t10k": 20}


def idx_file(array: np.ndarray[Any, Any]) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


class Fake:
    """As small as it can be, of the layout of Fashion-MNIST, on a server of its own."""

    def __init__(self, mirror: Mirror) -> None:
        rng = np.random.default_rng(3)
        self.mirror = mirror
        self.images = {half: rng.integers(256, size=(n, 28, 28), dtype=np.uint8) for half, n in SIZES.items()}
        self.labels = {half: rng.integers(10, size=n, dtype=np.uint8) for half, n in SIZES.items()}
        for half in SIZES:
            mirror.files[f"{half}-images-idx3-ubyte.gz"] = idx_file(self.images[half])
            mirror.files[f"{half}-labels-idx1-ubyte.gz"] = idx_file(self.labels[half])
        self.checksums = {name: md5(mirror.files[name]) for name in CHECKSUMS}

    def prepare(self, folder: Path, *mirrors: str) -> list[DatasetCopy]:
        patience = Patience(retries=0)
        mirrors = mirrors or (self.mirror.url,)
        return prepare_fashion_mnist(folder, mirrors, checksums=self.checksums, patience=patience)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving() as mirror:
        yield Fake(mirror)


@pytest.fixture
def without_tensordict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensordict", None)


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """All files, with what changes when they are replaced."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def made(parts: list[DatasetCopy], folder: Path) -> dict[str, bool]:
    return {str(part.path.relative_to(folder)): part.made for part in parts}


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.usefixtures("without_tensordict")
def test_both_halves_of_fashion_mnist_are_copied_exactly(fake: Fake, tmp_path: Path) -> None:
    parts = fake.prepare(tmp_path)
    root = tmp_path / "fashion-mnist"
    assert sorted(path.name for path in (root / "raw").iterdir()) == sorted(CHECKSUMS)
    for half, size in SIZES.items():
        assert np.array_equal(np.load(root / f"{half}-memmap" / "image.npy"), fake.images[half])
        assert np.array_equal(np.load(root / f"{half}-memmap" / "label.npy"), fake.labels[half])
        assert (half, size) in [(part.path.name, part.samples) for part in parts if part.format == "idx"]
    assert sorted(path.name for path in root.iterdir()) == ["raw", "t10k-memmap", "train-memmap"]


@pytest.mark.usefixtures("without_tensordict")
def test_the_copies_of_fashion_mnist_know_the_names_of_the_classes(fake: Fake, tmp_path: Path) -> None:
    fake.prepare(tmp_path)
    schema = memmap.open_reader(str(tmp_path / "fashion-mnist" / "train-memmap"), False).schema
    assert schema["label"].labels == CLASSES
    assert (schema["image"].dtype, schema["image"].shape) == (np.uint8, (28, 28))


def test_tensordict_reads_its_copies(fake: Fake, tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    fake.prepare(tmp_path)
    for half, size in SIZES.items():
        stored = tensordict.TensorDict.load_memmap(tmp_path / "fashion-mnist" / f"{half}-tensordict")
        assert stored.batch_size == (size,)
        assert np.array_equal(stored["image"].numpy(), fake.images[half])
        assert np.array_equal(stored["label"].numpy(), fake.labels[half])


@pytest.mark.usefixtures("without_tensordict")
def test_without_tensordict_its_copies_are_left_out_and_named(fake: Fake, tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    parts = prepare_fashion_mnist(
        tmp_path, [fake.mirror.url], progress=TerminalProgress(console), checksums=fake.checksums
    )
    assert {part.format for part in parts} == {"idx", "memmap"}
    assert isinstance(console.file, io.StringIO)
    assert "No train-tensordict: the package tensordict is not installed" in console.file.getvalue()


@pytest.mark.usefixtures("without_tensordict")
def test_a_second_call_touches_nothing(fake: Fake, tmp_path: Path) -> None:
    assert set(made(fake.prepare(tmp_path), tmp_path).values()) == {True}
    before = states(tmp_path)
    fake.mirror.requests.clear()
    assert set(made(fake.prepare(tmp_path), tmp_path).values()) == {False}
    assert fake.mirror.requests == []
    assert states(tmp_path) == before


@pytest.mark.usefixtures("without_tensordict")
def test_a_second_call_replaces_only_what_is_damaged(fake: Fake, tmp_path: Path) -> None:
    fake.prepare(tmp_path)
    root = tmp_path / "fashion-mnist"
    damage(root / "raw" / "t10k-labels-idx1-ubyte.gz")
    damage(root / "train-memmap" / "image.npy")
    fake.mirror.requests.clear()
    assert made(fake.prepare(tmp_path), root) == {
        "raw/train": False, "train-memmap": True, "raw/t10k": True, "t10k-memmap": False,
    }  # fmt: skip
    assert [path for path, _ in fake.mirror.requests] == ["/t10k-labels-idx1-ubyte.gz"]
    assert np.array_equal(np.load(root / "train-memmap" / "image.npy"), fake.images["train"])


@pytest.mark.usefixtures("without_tensordict")
def test_a_copy_of_other_samples_is_replaced(fake: Fake, tmp_path: Path) -> None:
    fake.prepare(tmp_path)
    fake.labels["train"][-1] ^= 1
    name = "train-labels-idx1-ubyte.gz"
    fake.mirror.files[name] = idx_file(fake.labels["train"])
    fake.checksums[name] = md5(fake.mirror.files[name])
    assert made(fake.prepare(tmp_path), tmp_path / "fashion-mnist")["train-memmap"]
    assert np.array_equal(np.load(tmp_path / "fashion-mnist" / "train-memmap" / "label.npy"), fake.labels["train"])


@pytest.mark.usefixtures("without_tensordict")
def test_a_copy_that_does_not_know_the_classes_is_replaced(fake: Fake, tmp_path: Path) -> None:
    fake.prepare(tmp_path)
    manifest = tmp_path / "fashion-mnist" / "t10k-memmap" / "headrace.json"
    before = json.loads(manifest.read_text())
    fields = [{key: value for key, value in field.items() if key != "labels"} for field in before["schema"]]
    manifest.write_text(json.dumps({**before, "schema": fields}))
    assert made(fake.prepare(tmp_path), tmp_path / "fashion-mnist")["t10k-memmap"]
    assert json.loads(manifest.read_text()) == before


@pytest.mark.usefixtures("without_tensordict")
def test_the_second_mirror_helps_out(fake: Fake, tmp_path: Path) -> None:
    fake.prepare(tmp_path, f"{fake.mirror.url}/empty/", f"{fake.mirror.url}/")
    asked = [path for path, _ in fake.mirror.requests]
    assert asked == [f"{place}/{name}" for name in CHECKSUMS for place in ("/empty", "")]


@pytest.mark.usefixtures("without_tensordict")
def test_after_a_cut_connection_the_next_call_goes_on(fake: Fake, tmp_path: Path) -> None:
    fake.mirror.cuts = [1000]
    with pytest.raises(DownloadError):
        fake.prepare(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".train-images-idx3-ubyte.gz.part"]
    fake.mirror.requests.clear()
    fake.prepare(tmp_path)
    assert fake.mirror.asked("train-images-idx3-ubyte.gz") == ["bytes=1000-"]
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.usefixtures("without_tensordict")
def test_ctrl_c_while_a_copy_is_written_leaves_nothing_of_it(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(memmap._MemmapWriter, "seal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fake.prepare(tmp_path)
    assert [path.name for path in (tmp_path / "fashion-mnist").iterdir()] == ["raw"]
    fake.mirror.requests.clear()
    assert not made(fake.prepare(tmp_path), tmp_path / "fashion-mnist")["raw/train"]
    assert fake.mirror.requests == []


@pytest.mark.usefixtures("without_tensordict")
def test_other_files_in_the_place_of_a_copy_are_left_alone(fake: Fake, tmp_path: Path) -> None:
    mine = tmp_path / "fashion-mnist" / "train-memmap" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(DatasetError, match="found:    other files"):
        fake.prepare(tmp_path)
    assert mine.read_text() == "mine"
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]


def test_a_file_with_the_right_checksum_that_is_no_idx_file_is_refused(fake: Fake, tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte.gz"
    fake.mirror.files[name] = gzip.compress(b"not of this format", mtime=0)
    fake.checksums[name] = md5(fake.mirror.files[name])
    with pytest.raises(FormatError, match="this is no IDX file"):
        fake.prepare(tmp_path)
    assert [path.name for path in (tmp_path / "fashion-mnist").iterdir()] == ["raw"]


@pytest.mark.usefixtures("without_tensordict")
def test_the_demo_is_written_in_each_form_alike(tmp_path: Path) -> None:
    parts = prepare_npz_demo(tmp_path, 30)
    root = tmp_path / "npz-demo"
    with np.load(root / "demo.npz") as stored:
        x, label = stored["x"], stored["label"]
    assert (x.dtype, x.shape, label.dtype, label.shape) == (np.float32, (30, 3, 32, 32), np.int64, (30,))
    assert set(label) <= set(range(10))
    assert len(np.unique(x)) > 0.99 * x.size
    assert np.array_equal(np.load(root / "demo-memmap" / "x.npy"), x)
    assert np.array_equal(np.load(root / "demo-memmap" / "label.npy"), label)
    assert [(part.format, part.samples, part.made) for part in parts] == [("npz", 30, True), ("memmap", 30, True)]
    assert sorted(path.name for path in root.iterdir()) == ["demo-memmap", "demo.npz", "demo.npz.headrace.json"]


@pytest.mark.thorough
def test_tensordict_reads_its_copy_of_the_demo(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    prepare_npz_demo(tmp_path, 30)
    stored = tensordict.TensorDict.load_memmap(tmp_path / "npz-demo" / "demo-tensordict")
    with np.load(tmp_path / "npz-demo" / "demo.npz") as expected:
        assert np.array_equal(stored["x"].numpy(), expected["x"])
        assert np.array_equal(stored["label"].numpy(), expected["label"])


@pytest.mark.usefixtures("without_tensordict")
def test_a_picture_of_the_demo_is_nearer_to_its_class_than_to_others(tmp_path: Path) -> None:
    prepare_npz_demo(tmp_path, 400)
    with np.load(tmp_path / "npz-demo" / "demo.npz") as stored:
        x, label = stored["x"].reshape(400, -1), stored["label"]
    means = np.stack([x[:200][label[:200] == number].mean(axis=0) for number in range(10)])
    nearest = (means @ x[200:].T - (means**2).sum(axis=1, keepdims=True) / 2).argmax(axis=0)
    assert np.array_equal(nearest, label[200:])


@pytest.mark.usefixtures("without_tensordict")
def test_the_same_seed_gives_the_same_demo_and_another_one_another(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare_npz_demo(tmp_path / folder, 30, seed)
    first, same, other = ((tmp_path / name / "npz-demo" / "demo-memmap" / "x.npy").read_bytes() for name in "abc")
    assert first == same
    assert first != other


@pytest.mark.usefixtures("without_tensordict")
def test_a_second_call_makes_the_demo_only_if_number_or_seed_differ(tmp_path: Path) -> None:
    prepare_npz_demo(tmp_path, 30)
    before = states(tmp_path)
    assert set(made(prepare_npz_demo(tmp_path, 30), tmp_path).values()) == {False}
    assert states(tmp_path) == before
    assert set(made(prepare_npz_demo(tmp_path, 30, 1), tmp_path).values()) == {True}
    parts = prepare_npz_demo(tmp_path, 20, 1)
    assert [(part.samples, part.made) for part in parts] == [(20, True), (20, True)]


@pytest.mark.usefixtures("without_tensordict")
def test_another_file_in_the_place_of_the_demo_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "npz-demo" / "demo.npz"
    mine.parent.mkdir()
    np.savez(mine, mine=np.arange(3))
    before = states(tmp_path)
    with pytest.raises(DatasetError, match="found:    another file"):
        prepare_npz_demo(tmp_path, 30)
    assert states(tmp_path) == before


def test_a_demo_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="samples="):
        prepare_npz_demo(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The command takes the small dataset for the real one, from its own mirror."""
    monkeypatch.setattr(datasets, "CHECKSUMS", fake.checksums)
    monkeypatch.setattr(datasets, "MIRRORS", (fake.mirror.url,))
    return fake


@pytest.mark.usefixtures("without_tensordict", "small")
def test_json_says_what_there_is_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_prepare("fashion-mnist", tmp_path, None, True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["folder"]) == ("fashion-mnist", str(tmp_path))
    assert [(part["format"], part["samples"], part["made"]) for part in told["parts"]] == [
        ("idx", 50, True), ("memmap", 50, True), ("idx", 20, True), ("memmap", 20, True),
    ]  # fmt: skip
    memmap_path = Path(told["parts"][1]["path"])
    assert memmap_path == tmp_path / "fashion-mnist" / "train-memmap"
    assert told["parts"][1]["bytes"] == sum(file.stat().st_size for file in memmap_path.iterdir())


@pytest.mark.usefixtures("without_tensordict", "small")
def test_the_table_has_a_row_for_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_prepare("fashion-mnist", tmp_path, None, False)
    assert run_prepare("fashion-mnist", tmp_path, None, False) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["fashion-mnist/t10k-memmap", "memmap", "20"] in [row[:3] for row in rows if row[-1:] == ["made"]]
    assert ["fashion-mnist/t10k-memmap", "memmap", "20"] in [row[:3] for row in rows if row[-2:] == ["was", "there"]]
    assert out.splitlines()[0] == f"In {tmp_path}:"
    assert "tensordict is not installed" in err


@pytest.mark.usefixtures("without_tensordict")
def test_a_mirror_that_is_named_is_the_only_one_asked(small: Fake, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="status 404") as raised:
        run_prepare("fashion-mnist", tmp_path, f"{small.mirror.url}/elsewhere", False)
    assert str(raised.value).count("http://") == 1
    assert [path for path, _ in small.mirror.requests] == ["/elsewhere/train-images-idx3-ubyte.gz"]


@pytest.mark.thorough
@pytest.mark.usefixtures("without_tensordict")
def test_the_demo_of_the_command_has_ten_thousand_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_prepare("npz-demo", tmp_path, None, True) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert [(Path(part["path"]).name, part["samples"]) for part in parts] == [
        ("demo.npz", 10000),
        ("demo-memmap", 10000),
    ]


@pytest.mark.parametrize(
    ("name", "mirror"), [("mnist", None), ("npz-demo", "http://one.invalid/"), ("fashion-mnist", "one")]
)
def test_a_wrong_call_writes_nothing(tmp_path: Path, name: str, mirror: str | None) -> None:
    with pytest.raises(UsageError):
        run_prepare(name, tmp_path, mirror, False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DatasetError, match="cannot write the dataset") as raised:
        run_prepare("npz-demo", tmp_path / "file", None, False)
    assert str(tmp_path / "file") in str(raised.value)
