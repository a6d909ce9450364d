"""`headrace cache`: what it prints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.core.errors import DatasetError
from headrace.core.text.urls import refuse_url
from headrace.storage.cache.maintenance import Contents, Report, check, clear, look
from headrace.storage.locations import local_path
from headrace.telemetry.formatting import size, some
from headrace.telemetry.terminal import Terminal

SHOWN = 20


def show_cache(folder: Path, *, json_output: bool) -> int:
    """Prints what is in a cache, and returns 0. Raises as `look`."""
    folder = Path(local_path(folder))
    with _files_bar(folder, "looking") as report:
        contents = look(folder, report)

    console = _console()
    if json_output:
        console.print_json(json.dumps(asdict(contents)))
        return 0

    objects = contents.complete + contents.partial
    limit = "no limit"
    if contents.limit is not None:
        limit = f"of {size(contents.limit)} ({contents.nbytes / contents.limit:.0%})"
    console.print(f"{folder}: {size(contents.nbytes)}, {limit}")
    console.print(f"  {some(objects, 'object')}: {contents.complete:,} complete, {contents.partial:,} in parts")
    console.print(f"  {some(contents.blocks, 'block')}")
    if contents.whole_files:
        console.print(f"  {some(contents.whole_files, 'whole file')}")
    if contents.other_files:
        console.print(f"  {some(contents.other_files, 'file')} of others, which headrace leaves alone")

    _print_jobs(console, contents)
    if contents.by_prefix:
        _print_prefixes(console, contents)
    return 0


def _print_jobs(console: Console, contents: Contents) -> None:
    if not contents.jobs:
        console.print("  no job uses it now")
        return
    pids = ", ".join(str(pid) for pid in contents.jobs)
    console.print(f"  {some(len(contents.jobs), 'job')} in use now: process {pids}")


def _print_prefixes(console: Console, contents: Contents) -> None:
    table = Table("below", "objects", "size", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"

    for prefix, (objects, nbytes) in list(contents.by_prefix.items())[:SHOWN]:
        table.add_row(prefix, f"{objects:,}", size(nbytes))
    console.print(table)
    if len(contents.by_prefix) > SHOWN:
        console.print(f"... and {len(contents.by_prefix) - SHOWN:,} more; --json lists all")


def check_cache(folder: Path, *, json_output: bool) -> int:
    """Checks a cache, prints what was wrong, and returns 0 if nothing was, 1 otherwise. Raises as `check`."""
    folder = Path(local_path(folder))
    with _files_bar(folder, "checking") as report:
        checked = check(folder, report)

    console = _console()
    if json_output:
        console.print_json(json.dumps(asdict(checked) | {"sound": not checked.problems}))
    else:
        read = f"{some(checked.files, 'file')}, {some(checked.blocks, 'block')}, {size(checked.nbytes)} read"
        console.print(f"{folder}: {read}")
        if not checked.problems:
            console.print("  sound", style="green")
        else:
            count = some(len(checked.problems), "problem")
            console.print(f"  {count}; dropped, and fetched again when needed", style="red")

        for problem in checked.problems[:SHOWN]:
            console.print(f"    {problem}")
        if len(checked.problems) > SHOWN:
            console.print(f"    ... and {len(checked.problems) - SHOWN:,} more; --json lists all")

    if checked.problems:
        return 1
    return 0


def clear_cache(folder: Path, *, yes: bool, force: bool) -> int:
    """Clears a cache, after a question, and returns 0. Raises as `clear`."""
    folder = Path(local_path(folder))
    if not yes:
        with _files_bar(folder, "looking") as report:
            contents = look(folder, report)
        objects = some(contents.complete + contents.partial + contents.whole_files, "object")
        typer.confirm(f"Remove {objects}, {size(contents.nbytes)}, from {folder}?", abort=True)

    with _files_bar(folder, "removing") as report:
        freed = clear(folder, force=force, report=report)
    _console().print(f"{folder}: {size(freed)} removed")
    return 0


@contextlib.contextmanager
def _files_bar(folder: Path, what: str) -> Iterator[Report]:
    """Shows a bar of files on stderr. Raises `UsageError` for a URL, and `DatasetError` for an `OSError`."""
    refuse_url(folder, "headrace cache", "name the folder of the cache on this node, as in cache_dir=")
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    except DatasetError:
        raise
    except OSError as error:
        found = error.strerror or error
        raise DatasetError.about("cannot use the cache", place=error.filename or folder, found=found) from error


def _console() -> Terminal:
    return Terminal(highlight=False, markup=False, emoji=False, soft_wrap=True)
