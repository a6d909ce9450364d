"""The states of random generators as text, so that a snapshot can be compared and written as JSON."""

from __future__ import annotations

import base64
import binascii
import random
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.core.errors import StateError
from headrace.core.randomness.rng import GlobalStates

WORDS = 625
"""Of the Mersenne Twister of `random`: 624 and the position among them. NumPy has its position elsewhere."""


class OrderStates(NamedTuple):
    """The generators from which an order may be drawn."""

    all: GlobalStates
    """The global ones of `random`, NumPy and torch."""
    own: list[torch.Tensor]
    """Those that the loader and its samplers own: uint8 [n] each."""


def encoded(states: OrderStates | None) -> dict[str, Any] | None:
    """Returns states as plain values: bytes as base64 text."""
    if states is None:
        return None

    version, words, gauss = states.all.python
    name, keys, position, has_gauss, cached = states.all.numpy
    return {
        "torch": _text(states.all.torch.numpy().tobytes()),
        "python": [version, _text(np.array(words, "<u4").tobytes()), gauss],
        "numpy": [name, _text(np.asarray(keys, "<u4").tobytes()), int(position), int(has_gauss), float(cached)],
        "own": [_text(state.numpy().tobytes()) for state in states.own],
    }


def decoded(given: Any) -> OrderStates | None:
    """Returns what `encoded` was given. Raises `StateError` for what it has not returned."""
    if given is None:
        return None

    try:
        version, words, gauss = given["python"]
        name, keys, position, has_gauss, cached = given["numpy"]
        python = (version, tuple(_words(words, WORDS).tolist()), gauss)
        numpy = (name, _words(keys, WORDS - 1), int(position), int(has_gauss), float(cached))
        own = [_tensor(state) for state in given["own"]]
        states = OrderStates(GlobalStates(python, numpy, _tensor(given["torch"])), own)
        _try_out(states)
    except (TypeError, LookupError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise StateError.about(
            "this state is damaged",
            place="load_state_dict",
            found=f"states of random generators that cannot be read ({type(error).__name__}: {error})"[:300],
            expected="what state_dict() returned, unchanged",
            fix="load another state, or begin the epoch again without it",
        ) from error

    return states


def _try_out(states: OrderStates) -> None:
    """Sets generators of its own to the states. Raises what they raise for states that are not theirs."""
    random.Random().setstate(states.all.python)
    np.random.RandomState().set_state(states.all.numpy)
    for state in (states.all.torch, *states.own):
        torch.Generator().set_state(state)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"a {type(text).__name__} instead of text")

    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _words(text: object, count: int) -> Any:
    words = np.frombuffer(_bytes(text), "<u4").astype(np.uint32)
    if len(words) != count:
        raise ValueError(f"{len(words)} words instead of {count}")
    return words


def _tensor(text: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8)
