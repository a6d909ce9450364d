"""Who is to blame for an exception: the sample, the moment, the machine or the program."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Iterator
from typing import Literal

import torch

from headrace.core.errors import (
    DatasetError,
    MachineError,
    MissingExtraError,
    SampleTimeoutError,
    TransportError,
    UsageError,
)
from headrace.core.process.signal_handlers import is_of_signal_handler

Blame = Literal["sample", "moment", "machine", "program"]

MACHINE = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""Out of memory, of descriptors, of disk: the next sample would fail, too."""

MOMENT = frozenset(
    {
        errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.ENETDOWN,
        errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNABORTED,
        errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE,
    }
)  # fmt: skip
"""What disks, file servers and networks say that may be well a moment later."""

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP's answers that ask for another try (RFC 9110, 6585)."""

PROGRAM = (ImportError, NameError, SyntaxError, NotImplementedError)

LONGEST_CHAIN = 16

IN_A_ROW = 100
"""Bad samples one behind the other, after which an iterator is taken to be stuck."""


def blame(error: BaseException) -> Blame:
    """Tells who is to blame for an exception, by it and what it was raised from.

    `machine`: no memory, descriptors or disk left. `program`: a name, an import, a wrong call, a dataset that cannot
    be used as a whole. `moment`: input and output that may succeed later. All else is the `sample`'s fault.
    """
    found: Blame = "sample"
    for one in _chain(error):
        if isinstance(one, OSError):
            code = one.errno
        else:
            code = None

        if isinstance(one, (MemoryError, torch.OutOfMemoryError, TransportError, MachineError)) or code in MACHINE:
            return "machine"
        # torch's allocator for the CPU has no type of its own.
        if type(one) is RuntimeError and "allocate memory" in str(one):
            return "machine"
        # It is a TimeoutError, which would otherwise be tried again, for as long as before.
        if isinstance(one, SampleTimeoutError):
            return "sample"
        if isinstance(one, (UsageError, DatasetError, MissingExtraError)) or type(one) in PROGRAM:
            return "program"
        if isinstance(one, (ConnectionError, TimeoutError)) or code in MOMENT or _status(one) in RETRIED_STATUS:
            found = "moment"

    return found


def is_never_skipped(error: BaseException) -> bool:
    """Tells whether an exception is raised whatever becomes of bad samples.

    It is the machine's, or the program's, or came out of a signal handler, which no sample is to blame for.
    """
    return blame(error) in ("machine", "program") or is_of_signal_handler(error)


def went_through_a_generator(error: BaseException) -> bool:
    """Tells whether an exception was raised within a generator, which has then ended."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        trace = trace.tb_next

    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        if current is None:
            return
        yield current
        # As a traceback shows it: `raise ... from None` hides what was being handled.
        if current.__cause__ is not None:
            current = current.__cause__
        elif current.__suppress_context__:
            return
        else:
            current = current.__context__


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status that an exception tells of; libraries have three names for it."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("code", "status", "status_code"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value

    return None
