"""A machine that is short of threads, memory or files is never taken for damage of the data."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.errors import FormatError, MachineError
from headrace.core.process.shortage import check_shortage, shortage
from headrace.data.formats.unreadable import unreadable
from headrace.faults.classify import blame

TOP = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, tuple[str, str]]]:
    """What opening each format came to, by format and limit; in a folder that another user can read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-m", "tests.data.formats.short_machine", folder],
            cwd=TOP, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_no_format_says_that_data_are_damaged_on_a_machine_that_is_short(
    outcomes: dict[str, tuple[str, str]],
) -> None:
    allowed = ("", "MachineError", "OSError")
    wrong = {name: found for name, found in outcomes.items() if found[0] not in allowed or "restore the" in found[1]}
    assert wrong == {}


@pytest.mark.thorough
@pytest.mark.parametrize("format", ["arrow", "parquet", "csv", "jsonl", "huggingface"])
def test_too_few_threads_are_named_with_a_fix(format: str, outcomes: dict[str, tuple[str, str]]) -> None:
    kind, text = outcomes[f"{format}, no threads"]
    assert kind == "MachineError"
    assert "short of threads or processes" in text
    assert "ulimit -u" in text


@pytest.mark.thorough
@pytest.mark.parametrize("limit", ["no threads", "no files"])
def test_a_cache_is_not_built_anew_on_a_machine_that_is_short(limit: str, outcomes: dict[str, tuple[str, str]]) -> None:
    kind, text = outcomes[f"cache arrow, {limit}"]
    assert kind == "MachineError"
    assert "damaged" not in text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EAGAIN, "x"), "threads or processes"),
        (OSError(errno.EMFILE, "x"), "open files for this process"),
        (OSError(errno.ENFILE, "x"), "open files for the whole system"),
        (OSError(errno.ENOMEM, "x"), "memory"),
        (OSError(errno.ENOSPC, "x"), "space on the disk"),
        (OSError(errno.EDQUOT, "x"), "the disk quota of this user"),
        (RuntimeError("can't start new thread"), "threads or processes"),
        (pa.ArrowException("Unknown error: Failed to launch worker thread"), "threads or processes"),
        (OSError("unable to open file (error message = 'Too many open files')"), "open files for this process"),
        (MemoryError(), "memory"),
        (pa.ArrowMemoryError("malloc of size 4096 failed"), "memory"),
        (pa.ArrowMemoryError("malloc of size 4611686018427387904 failed"), None),
        (MemoryError("Unable to allocate 7.99 EiB for an array with shape (9,) and data type uint8"), None),
        (MemoryError("Unable to allocate 1.50 GiB for an array with shape (9,) and data type uint8"), "memory"),
        (OSError(errno.EIO, "x"), None),
        (FileNotFoundError(errno.ENOENT, "x"), None),
        (ValueError("bad magic"), None),
        (KeyError("allocate memory"), None),
    ],
    ids=str,
)
def test_what_is_short_follows_from_the_exception(error: Exception, expected: str | None) -> None:
    assert shortage(error) == expected
    found = unreadable("there", "file", error)
    assert isinstance(found, FormatError) == (expected is None)
    assert isinstance(found, MachineError) == (expected is not None)


def test_what_numpy_says_of_absurd_sizes_is_understood() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 61, np.uint8)
    assert shortage(caught.value) is None


def test_a_shortage_behind_another_exception_is_found() -> None:
    error = ValueError("cannot read")
    error.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with pytest.raises(MachineError, match="ulimit -n") as caught:
        check_shortage(error, "there", "reading")
    assert blame(caught.value) == "machine"
