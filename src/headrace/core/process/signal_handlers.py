"""Tells an exception that a signal handler raised from one of the code that it interrupted."""

from __future__ import annotations

import functools
import signal
from types import CodeType, FrameType


def is_of_signal_handler(error: BaseException) -> bool:
    """Tells whether an exception came out of a Python signal handler that is installed now.

    Handlers run between any two instructions of the main thread, so their exceptions look as if the code raised them
    that was interrupted. The traceback tells: the frame of the handler is in it.
    """
    codes = set()
    for number in signal.valid_signals():
        codes.add(_code_of(_handler_of(number)))

    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes and not _is_ours(trace.tb_frame):
            return True
        trace = trace.tb_next

    return False


def _is_ours(frame: FrameType) -> bool:
    """Tells whether a handler is headrace's own: it ends a sample that takes too long, which is the sample's fault."""
    return str(frame.f_globals.get("__name__", "")).startswith("headrace.")


def _handler_of(number: int) -> object:
    try:
        return signal.getsignal(number)
    except ValueError:
        return None  # a number that Python knows, and this system does not


def _code_of(handler: object) -> CodeType | None:
    """Returns the code of a handler: a function, a method, a partial one, or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func

    handler = getattr(handler, "__func__", handler)
    code = getattr(handler, "__code__", None)
    if code is None and callable(handler):
        code = getattr(vars(type(handler)).get("__call__"), "__code__", None)
    if isinstance(code, CodeType):
        return code
    return None
