"""Tells in half a microsecond whether anybody has drawn from the global generators of `random`, NumPy and torch.

Asking the generators themselves takes forty: their states are copied into Python objects, word by word. So the memory
of the three Mersenne Twisters is read as it is: NumPy gives the address (`BitGenerator.ctypes`), CPython's `random` has
its words behind the head of the object, and torch's generator has them within its C++ object. Whether they are there is
tried out first; where not, as in other Pythons, the generators are asked.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np
import torch

from headrace.core.randomness.rng import GlobalStates, global_states, set_global_states

WORDS = 624
"""Of the state of a Mersenne Twister."""

BYTES = (WORDS + 1) * 4
"""With its position among the words: CPython has it in front, NumPy behind."""


TORCH_HEAD = struct.Struct("=QiiQ")
"""How `torch.Generator.get_state()` begins: seed, words left, whether it is seeded, position. 624 uint64 follow."""

TORCH_BEFORE, TORCH_BEHIND = 12, 24
"""Bytes beside torch's words that drawing changes: words left and position; two normal deviates in reserve."""

MARK = 20
"""Bytes of a state in which a draw is noticed, beside the position."""

TORCH_SEARCHED = 256
"""Bytes of torch's object in which its words must begin. It is ten times as large, as it holds them all."""

Seen = tuple[Any, Any, Any, bytes]
"""What was seen of the generators: of `random`, the normal deviate that it has in reserve, NumPy's, torch's."""


class GeneratorMoves:
    """Looks at the global generators after pieces of work of the calling thread, and before them where it must.

    As long as nobody draws between two pieces, what was seen behind one is how the generators are before the next.
    """

    def __init__(self) -> None:
        self._python_words = _words_at(_address_in_python())
        self._numpy_words = _words_at(_address_in_numpy())
        self._torch_words = _torch_words_at(_address_in_torch(torch.default_generator))
        self._marks = _marks_of(self._python_words, self._numpy_words, self._torch_words)
        self._marked: list[Any] = []
        self._torch_state = torch.default_generator.get_state()  # the official one of what `_before` has seen
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

        # Asking NumPy takes long beside a look, and is needed only where somebody else drew since.
        seen = self._look()
        before = self._before
        if before is None or seen[2] != before[2]:
            state: Any = np.random.get_state(legacy=False)
            if state["has_gauss"]:
                return False

        if before is None or seen[3] != before[3]:
            self._torch_state = torch.default_generator.get_state()

        self._looks_before = before is not None and seen != before
        self._before = seen
        self._marked = self._mark()
        return True

    def happened(self) -> bool:
        """Tells whether the generators moved during the work, or, if `is_sure` is false, before it."""
        if self._marked and self._mark() == self._marked:
            return False
        seen = self._look()
        before = self._before
        if seen == before:
            return False
        if before is None or self._torch_words is None or seen[:3] != before[:3]:
            return True
        # The bytes of a deviate that is no longer in reserve may be anything, so torch itself is asked.
        if not torch.equal(torch.default_generator.get_state(), self._torch_state):
            return True

        self._before = seen
        self._marked = self._mark()
        return False

    def _mark(self) -> list[Any]:
        """Returns a few bytes of each generator, one of which each draw changes; empty where they cannot be read."""
        if self._marks is None:
            return []
        marks: list[Any] = [mark.tobytes() for mark in self._marks]
        marks.append(random._inst.gauss_next)  # type: ignore[attr-defined]
        return marks

    def look_before(self) -> None:
        """Has the next `begin` look at the generators, because somebody draws between pieces of work, too."""
        self._looks_before = True

    def undo(self) -> None:
        """Puts the generators back to where they were at `begin`."""
        if self._before is None:
            return

        (python, gauss, numpy, _), now = self._before, global_states()
        if self._python_words is not None:
            position, *words = struct.unpack(f"={WORDS + 1}I", python)
            python = (now.python[0], (*words, position), gauss)

        if self._numpy_words is not None:
            *keys, place = struct.unpack(f"={WORDS + 1}I", numpy)
            numpy = (now.numpy[0], np.array(keys, np.uint32), place, 0, 0.0)
        else:
            name, state_words, *rest = numpy
            numpy = (name, np.frombuffer(state_words, np.uint32), *rest)

        set_global_states(GlobalStates(python, numpy, self._torch_state))
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

        if self._torch_words is None:
            of_torch = torch.default_generator.get_state().numpy().tobytes()
        else:
            of_torch = self._torch_words.tobytes()

        return python, random._inst.gauss_next, numpy, of_torch  # type: ignore[attr-defined]


def _marks_of(
    python: memoryview | None, numpy: memoryview | None, of_torch: memoryview | None
) -> list[memoryview] | None:
    """Returns the parts to look at: the position among the words, some words, and torch's deviates in reserve.

    A draw moves the position. It is where it was after 624 of them, but then each word is another one.
    """
    if python is None or numpy is None or of_torch is None:
        return None
    return [python[:MARK], numpy[:MARK], numpy[-4:], of_torch[: TORCH_BEFORE + MARK], of_torch[-TORCH_BEHIND:]]


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
    if generator.getstate()[1] == (*words, position):
        return address
    return None


def _address_in_numpy() -> int | None:
    """Returns where the words of NumPy's global generator lie; None if it is of another kind."""
    generator: Any = getattr(getattr(np.random.mtrand, "_rand", None), "_bit_generator", None)
    if type(generator) is not np.random.MT19937:
        return None

    address = int(generator.ctypes.state_address)
    *words, position = struct.unpack(f"={WORDS + 1}I", ctypes.string_at(address, BYTES))
    state = generator.state["state"]
    if (state["key"].tolist(), state["pos"]) == (words, position):
        return address
    return None


def _torch_words_at(address: int | None) -> memoryview | None:
    """Returns a view of what drawing changes in torch's generator, whose words begin at an address."""
    if address is None:
        return None
    length = TORCH_BEFORE + WORDS * 4 + TORCH_BEHIND
    return memoryview((ctypes.c_char * length).from_address(address - TORCH_BEFORE)).cast("B")


def _address_in_torch(generator: torch.Generator) -> int | None:
    """Returns where the words of torch's generator for the CPU lie; None if they are not where torch has had them.

    The object is at::CPUGeneratorImpl, whose last members are at::mt19937 (seed, words left, whether it is seeded,
    position, words) and two optional normal deviates.
    """
    address = _torch_words_in(generator)
    trial = torch.Generator()
    of_trial = _torch_words_in(trial)
    if address is None or of_trial is None or address - _object_of(generator) != of_trial - _object_of(trial):
        return None
    if _notices_every_draw(trial, of_trial):
        return address
    return None


def _object_of(generator: torch.Generator) -> int:
    """Returns where the C++ object of a generator lies; 0 if torch does not tell."""
    return int(getattr(generator, "_cdata", 0))


def _torch_words_in(generator: torch.Generator) -> int | None:
    """Returns where in its object a generator has the words that it tells, and its position before them."""
    own = _object_of(generator)
    state = generator.get_state().numpy().tobytes()
    if not own or len(state) < TORCH_HEAD.size + 8 * WORDS:
        return None

    _, left, _, position = TORCH_HEAD.unpack_from(state)
    words = struct.pack(f"={WORDS}I", *struct.unpack_from(f"={WORDS}Q", state, TORCH_HEAD.size))
    at = ctypes.string_at(own, TORCH_SEARCHED).find(words[:32])
    if at < TORCH_BEFORE:
        return None

    address = own + at
    before = struct.unpack("=iII", ctypes.string_at(address - TORCH_BEFORE, TORCH_BEFORE))
    is_there = ctypes.string_at(address, 4 * WORDS) == words and (before[0], before[2]) == (left, position)
    if is_there:
        return address
    return None


def _notices_every_draw(generator: torch.Generator, address: int) -> bool:
    """Tells whether each draw changes what is seen, that of a normal deviate in reserve too. Draws."""
    view = _torch_words_at(address)
    if view is None:
        return False

    seen = {view.tobytes()}
    for _ in range(2):
        for draw in (torch.rand, torch.randn):
            draw((), generator=generator)
            seen.add(view.tobytes())

    draws = 4
    return len(seen) == draws + 1
