"""`headrace prepare`: has a dataset downloaded or generated, and prints what there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from headrace.core.errors import DatasetError, HeadraceError, UsageError
from headrace.core.text.urls import refuse_url
from headrace.data.prepare import datasets
from headrace.data.prepare.datasets import DatasetCopy, prepare_fashion_mnist, prepare_npz_demo
from headrace.data.prepare.download import Report
from headrace.data.prepare.textures import prepare_textures
from headrace.storage.locations import local_path
from headrace.telemetry.terminal import Terminal


class TerminalProgress:
    """A `Progress` of `headrace.data.prepare.datasets` that draws bars in a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def downloading(self, name: str) -> Iterator[Report]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Bars(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(name, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    def writing(self, name: str) -> AbstractContextManager[object]:
        return self._console.status(f"Writing {name}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def run_prepare(name: str, folder: Path, mirror: str | None, json_output: bool) -> int:
    """Prepares a dataset, prints what there is to standard output, and returns the exit status 0.

    Raises `UsageError` for an unknown name or a mirror that would not be used, other errors as `prepare_fashion_mnist`.
    """
    folder = Path(local_path(folder))
    fix = "name a folder of this machine; `headrace pack FOLDER URL` then packs into a bucket"
    refuse_url(folder, "headrace prepare", fix)
    progress = TerminalProgress(Terminal(stderr=True))
    if name not in ("fashion-mnist", "npz-demo", "textures"):
        raise UsageError.about("no such dataset", found=repr(name), expected="fashion-mnist, npz-demo or textures")
    if name != "fashion-mnist" and mirror is not None:
        fix = "leave the mirror out"
        raise UsageError.about(f"{name} is generated, not downloaded", found=f"mirror {mirror!r}", fix=fix)

    try:
        if name == "textures":
            parts = prepare_textures(folder, progress=progress)
        elif name == "npz-demo":
            parts = prepare_npz_demo(folder, progress=progress)
        else:
            if mirror is None:
                mirrors: tuple[str, ...] = datasets.MIRRORS
            else:
                mirrors = (mirror,)
            parts = prepare_fashion_mnist(folder, mirrors, progress=progress, checksums=datasets.CHECKSUMS)
    except OSError as error:
        # Some of headrace's own errors are OSErrors as well. They say already what is wrong.
        if isinstance(error, HeadraceError):
            raise
        place = error.filename or folder
        fix = "make room, or choose a folder that can be written to"
        found = error.strerror or error
        raise DatasetError.about("cannot write the dataset", place=place, found=found, fix=fix) from error

    _print_parts(name, folder, parts, json_output)
    return 0


def _print_parts(name: str, folder: Path, parts: Sequence[DatasetCopy], json_output: bool) -> None:
    console = Terminal()
    if json_output:
        rows = []
        for part in parts:
            rows.append(
                {
                    "path": str(part.path),
                    "format": part.format,
                    "samples": part.samples,
                    "bytes": part.size,
                    "made": part.made,
                }
            )

        text = json.dumps({"name": name, "folder": str(folder), "parts": rows}, indent=2)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return

    console.print(f"In {folder}:", markup=False, highlight=False, soft_wrap=True)
    table = Table("path", "format", "samples", "size", "", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[2:4]:
        column.justify = "right"

    for part in parts:
        if part.made:
            state = "made"
        else:
            state = "was there"
        table.add_row(str(part.path.relative_to(folder)), part.format, f"{part.samples:,}", decimal(part.size), state)

    console.print(table)
