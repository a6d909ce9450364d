"""The signatures of methods, read once for each function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary


class KnownSignature:
    """A signature, and which calls it is known to accept: asked several times for each epoch."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        self._accepted: dict[tuple[int, tuple[str, ...]], bool] = {}

    def accepts(self, count: int, words: tuple[str, ...]) -> bool:
        """Tells whether a call with `count` arguments and others named `words` fits."""
        known = self._accepted.get((count, words))
        if known is None:
            try:
                self._signature.bind(*[None] * count, **dict.fromkeys(words))
                known = True
            except TypeError:
                known = False
            self._accepted[count, words] = known
        return known

    @property
    def parameters(self) -> Collection[str]:
        """The names of the parameters."""
        return self._signature.parameters


_signatures: WeakKeyDictionary[FunctionType, KnownSignature] = WeakKeyDictionary()
"""Of the functions that were looked at: to read a signature takes a hundred times as long as to call a function."""


def signature_of(method: Callable[..., Any]) -> KnownSignature | None:
    """Returns the signature of a method that is bound already; None if nobody knows it, as of some written in C."""
    function = getattr(method, "__func__", None)
    if type(method) is not MethodType or type(function) is not FunctionType:
        return _read(method)

    known = _signatures.get(function)
    if known is None:
        known = _read(method)
        if known is not None:
            _signatures[function] = known
    return known


def _read(method: Callable[..., Any]) -> KnownSignature | None:
    try:
        return KnownSignature(inspect.signature(method))
    except (TypeError, ValueError):
        return None
