"""Run by `test_shortage`: opens data in processes that may start no thread, or open no file. Prints what came of it."""

from __future__ import annotations

import functools
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.data.formats.registry import FORMATS
from tests.data.formats.samples import path_of, usual, write

NOBODY = 65534
SAMPLES = [{"x": np.arange(4.0), "text": "a" * number} for number in range(20)]


def no_threads() -> None:
    """Lets this process start no thread. The limit does not hold for root, so root becomes nobody."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def no_files() -> None:
    """Lets this process open no file."""
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor, descriptor))


def read(path: str) -> None:
    headrace.open(path)[0]


def open_cache(path: str, format: str) -> None:
    headrace.Staged(SAMPLES, cache=path, stale="rebuild", format=format)[0]


def outcome(limit: Callable[[], None], action: Callable[[], Any]) -> tuple[str, str]:
    """Returns the type and text of what an action raises in a child with a limit; empty texts if nothing."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        found = ("", "")
        try:
            limit()
            action()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            found = (type(error).__name__, str(error))
        os.write(there, json.dumps(found).encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return tuple(json.loads(text)) if text else (f"ended with {status}", "")


def main(folder: Path) -> None:
    """Writes data of every format and a cache, and opens them under both limits."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    limits = {"no threads": no_threads, "no files": no_files}
    found = {}
    for format in FORMATS:
        (folder / format).mkdir()
        path = path_of(format, folder / format)
        write(format, path, [usual(format)])
        read(str(path))  # imports what is needed
        for name, limit in limits.items():
            found[f"{format}, {name}"] = outcome(limit, functools.partial(read, str(path)))

    for format in ("arrow", "parquet"):
        cache = folder / f"cache-{format}"
        headrace.Staged(SAMPLES, cache=cache, format=format)
        before = sorted((str(file), file.stat().st_ino) for file in cache.rglob("*"))
        for name, limit in limits.items():
            found[f"cache {format}, {name}"] = outcome(limit, functools.partial(open_cache, str(cache), format))
        assert before == sorted((str(file), file.stat().st_ino) for file in cache.rglob("*"))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
