"""Tells in two microseconds whether anybody has drawn from the global generators of `random`, NumPy and torch.

Asking the generators themselves takes forty: their states are copied into Python objects, word by word. So the memory
of the two Mersenne Twisters is read as it is: NumPy gives the address (`BitGenerator.ctypes`), and CPython's `random`
has its words behind the head of the object. Whether they are there is tried out first; where not, as in other
Pythons, the generators are asked.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np
import torch

from headrace.core.streams import GlobalStates, global_states, set_global_states

WORDS = 624
"""Of the state of a Mersenne Twister."""

BYTES = (WORDS + 1) * 4
"""With its position among the words: CPython has it in front, NumPy behind."""


Seen = tuple[Any, Any, Any, bytes]
"""What was seen of the generators: of `random`, the normal deviate that it has in reserve, NumPy's, torch's."""


class GeneratorMoves:
    """Looks at the global generators after pieces of work of the calling thread, and before them where it must.

    As long as nobody draws between two pieces, what was seen behind one is how the generators are before the next.
    """

    def __init__(self) -> None:
        self._python_words = _words_at(_address_in_python())
        self._numpy_words = _words_at(_address_in_numpy())
        self._before: Seen | None = None
        self._looks_before = True
        self.is_sure = True
        """Whether a move that `happened` has seen can only be of the work."""

    def begin(self) -> bool:
        """A piece of work begins. False: a draw from NumPy could not be told, so do not rely on `happened`.

        NumPy has a normal deviate in reserve, if an odd number of them was drawn. Taking that moves nothing.
        """
        self.is_sure = self._looks_before
        if not self._looks_before:
            return True
        seen, before = self._look(), self._before
        if before is None or seen[2] != before[2]:  # somebody else drew since
            state: Any = np.random.get_state(legacy=False)
            if state["has_gauss"]:
                return False
        self._looks_before = before is not None and seen != before
        self._before = seen
        return True

    def happened(self) -> bool:
        """Tells whether the generators moved during the work, or, if `is_sure` is false, before it."""
        return self._look() != self._before

    def look_before(self) -> None:
        """Has the next `begin` look at the generators, because somebody draws between pieces of work, too."""
        self._looks_before = True

    def undo(self) -> None:
        """Puts the generators back to where they were at `begin`."""
        if self._before is None:
            return
        (python, gauss, numpy, of_torch), now = self._before, global_states()
        if self._python_words is not None:
            position, *words = struct.unpack(f"={WORDS + 1}I", python)
            python = (now.python[0], (*words, position), gauss)
        if self._numpy_words is not None:
            *keys, place = struct.unpack(f"={WORDS + 1}I", numpy)
            numpy = (now.numpy[0], np.array(keys, np.uint32), place, 0, 0.0)
        else:
            name, state_words, *rest = numpy
            numpy = (name, np.frombuffer(state_words, np.uint32), *rest)
        words_of_torch = torch.frombuffer(bytearray(of_torch), dtype=torch.uint8)
        set_global_states(GlobalStates(python, numpy, words_of_torch))
        self._before = None
        self._looks_before = True

    def _look(self) -> Seen:
        if self._python_words is None:
            python: Any = random.getstate()
        else:
            python = self._python_words.tobytes()
        if self._numpy_words is None:
            state: Any = np.random.get_state(legacy=True)
            numpy: Any = (state[0], np.asarray(state[1]).tobytes(), *state[2:])
        else:
            numpy = self._numpy_words.tobytes()
        of_torch = torch.default_generator.get_state().numpy().tobytes()
        return python, random._inst.gauss_next, numpy, of_torch  # type: ignore[attr-defined]


def _words_at(address: int | None) -> memoryview | None:
    """Returns a view of the words of a Mersenne Twister and its position."""
    if address is None:
        return None
    return memoryview((ctypes.c_char * BYTES).from_address(address)).cast("B")


def _address_in_python() -> int | None:
    """Returns where the words of `random`'s generator lie; None if they are not where CPython has them."""
    generator: Any = getattr(random, "_inst", None)
    if type(generator) is not random.Random or random.Random.__basicsize__ < object.__basicsize__ + BYTES:
        return None
    address = id(generator) + object.__basicsize__
    position, *words = struct.unpack(f"={WORDS + 1}I", ctypes.string_at(address, BYTES))
    return address if generator.getstate()[1] == (*words, position) else None


def _address_in_numpy() -> int | None:
    """Returns where the words of NumPy's global generator lie; None if it is of another kind."""
    generator: Any = getattr(getattr(np.random.mtrand, "_rand", None), "_bit_generator", None)
    if type(generator) is not np.random.MT19937:
        return None
    address = int(generator.ctypes.state_address)
    *words, position = struct.unpack(f"={WORDS + 1}I", ctypes.string_at(address, BYTES))
    state = generator.state["state"]
    return address if (state["key"].tolist(), state["pos"]) == (words, position) else None
