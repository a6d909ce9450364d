"""Which calls a method takes, found out once for each function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary


class Calls:
    """The signature of a method, and which calls it is known to take: asked several times for each epoch."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature
        self._taken: dict[tuple[int, tuple[str, ...]], bool] = {}

    def take(self, count: int, words: tuple[str, ...]) -> bool:
        """Tells whether a call with `count` arguments and others named `words` fits."""
        known = self._taken.get((count, words))
        if known is None:
            try:
                self.signature.bind(*[None] * count, **dict.fromkeys(words))
                known = True
            except TypeError:
                known = False
            self._taken[count, words] = known
        return known


_calls: WeakKeyDictionary[FunctionType, Calls] = WeakKeyDictionary()
"""Of the functions that were looked at: to read a signature takes a hundred times as long as to call a function."""


def calls_of(method: Callable[..., Any]) -> Calls | None:
    """Returns which calls a method takes that is bound already; None if nobody knows, as of some written in C."""
    function = getattr(method, "__func__", None)
    if type(method) is not MethodType or type(function) is not FunctionType:
        return _read(method)

    known = _calls.get(function)
    if known is None:
        known = _read(method)
        if known is not None:
            _calls[function] = known
    return known


def _read(method: Callable[..., Any]) -> Calls | None:
    try:
        return Calls(inspect.signature(method))
    except (TypeError, ValueError):
        return None
