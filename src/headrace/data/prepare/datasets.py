"""Datasets to try things with: Fashion-MNIST and generated pictures, with copies that are memory-mapped."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.core.errors import DatasetError, HeadraceError, MissingExtraError, UsageError
from headrace.core.extras import extra
from headrace.data.formats import idx, memmap, npz, tensordict_memmap
from headrace.data.formats.columns import Array, Field, Schema
from headrace.data.formats.columns.arrays import ColumnsReader
from headrace.data.formats.guards.limits import stored_size
from headrace.data.formats.manifest import manifest_path
from headrace.data.formats.protocol import Format, Reader
from headrace.data.prepare.download import Patience, Report, download_any, silent

MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DEMO_SHAPE = (3, 32, 32)
DEMO_CLASSES = 10


@dataclass(frozen=True)
class DatasetCopy:
    """One form of a dataset, or of a half of it. `made`: by this call; otherwise it was there."""

    path: Path
    format: str
    samples: int
    size: int
    """In bytes, the small file that describes it included."""
    made: bool


class Progress(Protocol):
    """Is told how the work goes on, in the thread that does it."""

    def downloading(self, name: str) -> AbstractContextManager[Report]:
        """Returns a context for one download; yields what is to be called with the bytes so far, and in all."""

    def writing(self, name: str) -> AbstractContextManager[object]:
        """Returns a context for the writing of one copy."""

    def note(self, text: str) -> None:
        """Takes a sentence for the user."""


class Silent:
    """A `Progress` that tells nobody."""

    def downloading(self, name: str) -> AbstractContextManager[Report]:
        return contextlib.nullcontext(silent)

    def writing(self, name: str) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def note(self, text: str) -> None:
        """See `Progress.note`."""


def prepare_fashion_mnist(
    folder: Path,
    mirrors: Sequence[str] = MIRRORS,
    *,
    progress: Progress | None = None,
    checksums: Mapping[str, str] | None = None,
    patience: Patience | None = None,
) -> list[DatasetCopy]:
    """Downloads Fashion-MNIST to `folder`/fashion-mnist/raw and writes memory-mapped copies; only what is missing.

    checksums: of other files than those of Fashion-MNIST, by name; `download_any` says what a checksum is.

    Raises `DownloadError`; `FormatError` if a file is not what it should be; `DatasetError` if something else is in
    the place of a copy.
    """
    if checksums is None:
        wanted: Mapping[str, str] = CHECKSUMS
    else:
        wanted = checksums

    if progress is None:
        progress = Silent()

    root = folder / "fashion-mnist"
    files = [root / "raw" / name for name in wanted]
    before = _states(files)
    for file in files:
        with progress.downloading(file.name) as report:
            urls = [f"{mirror.rstrip('/')}/{file.name}" for mirror in mirrors]
            download_any(urls, file, checksum=wanted[file.name], report=report, patience=patience)

    changed = set()
    for file, state in _states(files).items():
        if before.get(file) != state:
            changed.add(file)

    parts = []
    for half in ("train", "t10k"):
        ours = []
        for file in files:
            if file.name.startswith(half):
                ours.append(file)

        source = idx.open_reader(str(root / "raw" / half), trust=False)
        size = stored_size(ours)
        parts.append(DatasetCopy(root / "raw" / half, idx.NAME, len(source), size, made=not changed.isdisjoint(ours)))
        parts += _copies(source, root, half, progress, {"label": CLASSES})

    return parts


def prepare_npz_demo(
    folder: Path, samples: int = 10_000, seed: int = 0, *, progress: Progress | None = None
) -> list[DatasetCopy]:
    """Writes `folder`/npz-demo/demo.npz, random pictures of ten classes, and memory-mapped copies.

    The same number and seed give the same pictures. What is there already is left as it is.

    Raises `UsageError` if there shall be less than one sample, `DatasetError` if something else is in the place of one
    of the files.
    """
    if samples < 1:
        raise UsageError.about("cannot make a dataset", place="samples=", found=samples, expected="1 or more")

    if progress is None:
        progress = Silent()

    root = folder / "npz-demo"
    source = _generated(samples, seed, str(root))
    parts = [_copy(source, npz, root / "demo.npz", progress, source.schema)]
    return parts + _copies(source, root, "demo", progress, {})


def _states(files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Returns, for each file that is there, what changes when it is replaced."""
    states = {}
    for file in files:
        if file.is_file():
            states[file] = (file.stat().st_ino, file.stat().st_mtime_ns)

    return states


def _generated(samples: int, seed: int, place: str) -> Reader:
    """Returns samples that lie in memory: each is the picture of its class, and as much noise."""
    rng = np.random.default_rng(seed)
    pictures = rng.standard_normal((DEMO_CLASSES, *DEMO_SHAPE), np.float32)
    label = rng.integers(DEMO_CLASSES, size=samples, dtype=np.int64)
    x = rng.standard_normal((samples, *DEMO_SHAPE), np.float32)
    for number, picture in enumerate(pictures):
        x[label == number] += picture

    columns: dict[str, Array] = {"x": x, "label": label}
    fields = []
    for name, array in columns.items():
        fields.append(Field(name, "fixed", array.dtype, array.shape[1:]))

    schema = Schema(tuple(fields))
    return ColumnsReader("generated", place, schema, samples, lambda: columns)


def _copies(
    source: Reader, root: Path, stem: str, progress: Progress, classes: Mapping[str, tuple[str, ...]]
) -> list[DatasetCopy]:
    """Writes the copies that are memory-mapped; that of TensorDict if its library is installed."""
    fields = []
    for field in source.schema:
        fields.append(dataclasses.replace(field, labels=classes.get(field.name, field.labels)))

    schema = Schema(tuple(fields))
    parts = [_copy(source, memmap, root / f"{stem}-memmap", progress, schema)]
    try:
        extra("tensordict", "tensordict")
    except MissingExtraError:
        note = f"No {stem}-tensordict: the package tensordict is not installed (pip install 'headrace[tensordict]')."
        progress.note(note)
        return parts

    return [*parts, _copy(source, tensordict_memmap, root / f"{stem}-tensordict", progress, schema)]


def _copy(source: Reader, form: Format, path: Path, progress: Progress, schema: Schema) -> DatasetCopy:
    """Writes all samples in another format, unless that was done before."""
    if _holds(form, path, source, schema):
        return DatasetCopy(path, form.NAME, len(source), _size(path), made=False)

    _refuse_other_content(path)
    with progress.writing(path.name):
        writer = form.open_writer(str(path), schema)
        try:
            for run in source.blocks():
                writer.append(source.fetch(np.arange(run.start, run.stop), schema.names))
            writer.seal()
        except BaseException:
            writer.abort()
            raise

    return DatasetCopy(path, form.NAME, len(source), _size(path), made=True)


def _holds(form: Format, path: Path, source: Reader, schema: Schema) -> bool:
    """Tells whether a complete copy is there: of this length and these columns, its first and last sample the same."""
    ends = np.array([0, len(source) - 1])
    try:
        reader = form.open_reader(str(path), False)
        if reader.schema != schema or len(reader) != len(source):
            return False
        found = reader.fetch(ends, schema.names)
        expected = source.fetch(ends, schema.names)
    except (HeadraceError, OSError):
        return False

    return all(_same(found.columns[name], expected.columns[name]) for name in schema.names)


def _same(found: object, expected: object) -> bool:
    return isinstance(found, np.ndarray) and isinstance(expected, np.ndarray) and np.array_equal(found, expected)


def _refuse_other_content(path: Path) -> None:
    """Raises `DatasetError` if something is there that headrace has not written."""
    empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if empty or manifest_path(path).exists():
        return

    if path.is_dir():
        found = "other files"
    else:
        found = "another file"

    raise DatasetError.about(
        "cannot write a copy of the dataset",
        place=path,
        found=found,
        expected="nothing, or what this command wrote",
        fix="remove it, or choose another folder",
    )


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
