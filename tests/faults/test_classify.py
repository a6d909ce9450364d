"""Who is to blame for an exception."""

from __future__ import annotations

import errno
import urllib.error
from email.message import Message

import pytest
import torch

from headrace.core.errors import (
    FormatError,
    SampleError,
    SampleTimeoutError,
    StaleCacheError,
    UsageError,
    WorkerDiedError,
)
from headrace.faults.classify import blame


def http(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://a/b", code, "no", Message(), None)


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad"), "sample"),
        (KeyError("bad"), "sample"),
        (IndexError(3), "sample"),
        (RuntimeError("bad"), "sample"),
        (SampleError("bad"), "sample"),
        (FormatError("bad"), "sample"),
        (FileNotFoundError(errno.ENOENT, "no", "a.jpg"), "sample"),
        (PermissionError(errno.EACCES, "no", "a.jpg"), "sample"),
        (EOFError(), "sample"),
        (AssertionError(), "sample"),
        (WorkerDiedError("killed"), "sample"),
        (SampleTimeoutError("slow"), "sample"),
        (http(404), "sample"),
        (ConnectionResetError(), "moment"),
        (TimeoutError(), "moment"),
        (OSError(errno.EIO, "no"), "moment"),
        (OSError(errno.ESTALE, "no"), "moment"),
        (http(503), "moment"),
        (raised_from(FormatError("cannot read"), OSError(errno.EIO, "no")), "moment"),
        (MemoryError(), "machine"),
        (OSError(errno.ENOSPC, "full"), "machine"),
        (OSError(errno.EMFILE, "too many"), "machine"),
        (torch.OutOfMemoryError("CUDA"), "machine"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "machine"),
        (raised_from(SampleError("cannot decode"), MemoryError()), "machine"),
        (NameError("x"), "program"),
        (ImportError("x"), "program"),
        (NotImplementedError(), "program"),
        (UsageError("wrong"), "program"),
        (StaleCacheError("old"), "program"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__}({value})"[:40],
)
def test_the_blame_follows_from_the_exception_and_its_causes(error: Exception, expected: str) -> None:
    assert blame(error) == expected


def test_a_cause_that_was_suppressed_does_not_count() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("bad") from None
    except ValueError as error:
        assert blame(error) == "sample"


def test_exceptions_that_cause_each_other_come_to_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert blame(first) == "sample"
