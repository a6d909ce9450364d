"""`headrace prepare`: a dataset to try things with, downloaded or generated, and copies that are memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from headrace.core.errors import DatasetError, HeadraceError, MissingExtraError, UsageError, explain
from headrace.core.extras import extra
from headrace.core.urls import refuse_url
from headrace.data.formats import idx, memmap, npz, tensordict_memmap
from headrace.data.formats.arrays import ColumnsReader
from headrace.data.formats.columns import Array
from headrace.data.formats.manifest import manifest_path
from headrace.data.formats.protocol import Format, Reader
from headrace.data.formats.schema import Field, Schema
from headrace.data.storage.download import Patience, Report, download_any
from headrace.telemetry.terminal import Terminal

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
class Part:
    """One form of a dataset, or of a half of it. `made`: by this call; otherwise it was there."""

    path: Path
    format: str
    samples: int
    size: int
    """In bytes, the small file that describes it included."""
    made: bool


def run_prepare(name: str, folder: Path, mirror: str | None, json_output: bool) -> int:
    """Prepares a dataset, prints what there is to standard output, and returns the exit status 0.

    Raises `UsageError` for an unknown name or a mirror that would not be used, other errors as `prepare_fashion_mnist`.
    """
    refuse_url(folder, "headrace prepare")
    console = Terminal(stderr=True)
    if name not in ("fashion-mnist", "npz-demo"):
        raise UsageError(explain("no such dataset", found=repr(name), expected="fashion-mnist or npz-demo"))
    if name == "npz-demo" and mirror is not None:
        cure = "leave the mirror out"
        raise UsageError(explain("npz-demo is generated, not downloaded", found=f"mirror {mirror!r}", cure=cure))

    try:
        if name == "npz-demo":
            parts = prepare_npz_demo(folder, console=console)
        else:
            if mirror is None:
                mirrors: tuple[str, ...] = MIRRORS
            else:
                mirrors = (mirror,)
            parts = prepare_fashion_mnist(folder, mirrors, console=console, checksums=CHECKSUMS)
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        place = error.filename or folder
        cure = "make room, or choose a folder that can be written to"
        found = error.strerror or error
        raise DatasetError(explain("cannot write the dataset", place=place, found=found, cure=cure)) from error

    _print_parts(name, folder, parts, json_output)
    return 0


def prepare_fashion_mnist(
    folder: Path,
    mirrors: Sequence[str] = MIRRORS,
    *,
    console: Console,
    checksums: Mapping[str, str] | None = None,
    patience: Patience | None = None,
) -> list[Part]:
    """Downloads Fashion-MNIST to `folder`/fashion-mnist/raw and writes memory-mapped copies; only what is missing.

    checksums: of other files than those of Fashion-MNIST, by name; `download_any` says what a checksum is.

    Raises `DownloadError`; `FormatError` if a file is not what it should be; `DatasetError` if something else is in
    the place of a copy.
    """
    if checksums is None:
        wanted: Mapping[str, str] = CHECKSUMS
    else:
        wanted = checksums

    root = folder / "fashion-mnist"
    files = [root / "raw" / name for name in wanted]
    before = _states(files)
    for file in files:
        with _progress(console, file.name) as report:
            urls = [f"{mirror.rstrip('/')}/{file.name}" for mirror in mirrors]
            download_any(urls, file, checksum=wanted[file.name], report=report, patience=patience)

    changed = {file for file, state in _states(files).items() if before.get(file) != state}
    parts = []
    for half in ("train", "t10k"):
        ours = [file for file in files if file.name.startswith(half)]
        source = idx.open_reader(str(root / "raw" / half), trust=False)
        size = sum(file.stat().st_size for file in ours)
        parts.append(Part(root / "raw" / half, idx.NAME, len(source), size, made=not changed.isdisjoint(ours)))
        parts += _copies(source, root, half, console, {"label": CLASSES})

    return parts


def prepare_npz_demo(folder: Path, samples: int = 10_000, seed: int = 0, *, console: Console) -> list[Part]:
    """Writes `folder`/npz-demo/demo.npz, random pictures of ten classes, and memory-mapped copies.

    The same number and seed give the same pictures. What is there already is left as it is.

    Raises `UsageError` if there shall be less than one sample, `DatasetError` if something else is in the place of one
    of the files.
    """
    if samples < 1:
        message = explain("cannot make a dataset", place="samples=", found=samples, expected="1 or more")
        raise UsageError(message)

    root = folder / "npz-demo"
    source = _generated(samples, seed, str(root))
    parts = [_copy(source, npz, root / "demo.npz", console, source.schema)]
    return parts + _copies(source, root, "demo", console, {})


def _states(files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Returns, for each file that is there, what changes when it is replaced."""
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files if file.is_file()}


@contextmanager
def _progress(console: Console, name: str) -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _generated(samples: int, seed: int, place: str) -> Reader:
    """Returns samples that lie in memory: each is the picture of its class, and as much noise."""
    rng = np.random.default_rng(seed)
    pictures = rng.standard_normal((DEMO_CLASSES, *DEMO_SHAPE), np.float32)
    label = rng.integers(DEMO_CLASSES, size=samples, dtype=np.int64)
    x = rng.standard_normal((samples, *DEMO_SHAPE), np.float32)
    for number, picture in enumerate(pictures):
        x[label == number] += picture

    columns: dict[str, Array] = {"x": x, "label": label}
    schema = Schema(tuple(Field(name, "fixed", array.dtype, array.shape[1:]) for name, array in columns.items()))
    return ColumnsReader("generated", place, schema, samples, lambda: columns)


def _copies(
    source: Reader, root: Path, stem: str, console: Console, classes: Mapping[str, tuple[str, ...]]
) -> list[Part]:
    """Writes the copies that are memory-mapped; that of TensorDict if its library is installed."""
    fields = (
        Field(one.name, one.kind, one.dtype, one.shape, classes.get(one.name, one.labels)) for one in source.schema
    )
    schema = Schema(tuple(fields))
    parts = [_copy(source, memmap, root / f"{stem}-memmap", console, schema)]
    try:
        extra("tensordict", "tensordict")
    except MissingExtraError:
        note = f"No {stem}-tensordict: the package tensordict is not installed (pip install 'headrace[tensordict]')."
        console.print(note, markup=False, highlight=False, soft_wrap=True)
        return parts

    return [*parts, _copy(source, tensordict_memmap, root / f"{stem}-tensordict", console, schema)]


def _copy(source: Reader, form: Format, path: Path, console: Console, schema: Schema) -> Part:
    """Writes all samples in another format, unless that was done before."""
    if _holds(form, path, source, schema):
        return Part(path, form.NAME, len(source), _size(path), made=False)

    _refuse_other_content(path)
    with console.status(f"Writing {path.name}"):
        writer = form.open_writer(str(path), schema)
        try:
            for run in source.blocks():
                writer.append(source.fetch(np.arange(run.start, run.stop), schema.names))
            writer.seal()
        except BaseException:
            writer.abort()
            raise

    return Part(path, form.NAME, len(source), _size(path), made=True)


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

    raise DatasetError(
        explain(
            "cannot write a copy of the dataset",
            place=path,
            found="other files" if path.is_dir() else "another file",
            expected="nothing, or what this command wrote",
            cure="remove it, or choose another folder",
        )
    )


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def _print_parts(name: str, folder: Path, parts: Sequence[Part], json_output: bool) -> None:
    console = Terminal()
    if json_output:
        rows = [
            {"path": str(one.path), "format": one.format, "samples": one.samples, "bytes": one.size, "made": one.made}
            for one in parts
        ]
        text = json.dumps({"name": name, "folder": str(folder), "parts": rows}, indent=2)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return

    console.print(f"In {folder}:", markup=False, highlight=False, soft_wrap=True)
    table = Table("path", "format", "samples", "size", "", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[2:4]:
        column.justify = "right"

    for one in parts:
        if one.made:
            state = "made"
        else:
            state = "was there"
        table.add_row(str(one.path.relative_to(folder)), one.format, f"{one.samples:,}", decimal(one.size), state)

    console.print(table)
