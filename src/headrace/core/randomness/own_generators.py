"""Random generators that a dataset holds itself, or its transforms do, as those of Albumentations.

With `seed=` they are seeded for each sample, as the global ones are. Without, all workers have copies in one state.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch

from headrace.core.protocols import says_yes
from headrace.core.randomness.counter_based import GOLDEN, MASK, mix

KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)

DEPTH = 8
"""Steps from a dataset to a generator, at most: attributes, and what lists, tuples and dictionaries hold."""

MOST = 2000
"""Objects that are looked at."""

LONGEST = 100
"""Entries of a list or dictionary that is looked into: longer ones hold data."""

PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, FunctionType, np.ndarray,
         torch.Tensor)  # fmt: skip
"""What holds no generator."""

AROUND = ("dataset", "datasets")
"""Attributes in which datasets keep those that they wrap, which are looked into as deep again."""


class Found(NamedTuple):
    """A generator, and how to get to it."""

    path: str
    generator: Any


def generators_of(*roots: object) -> list[Found]:
    """Returns the generators that objects hold, each once. What says that it draws no numbers is not looked into."""
    return [Found(path, value) for path, value in values_in(KINDS, *roots)]


def values_in(kinds: tuple[type, ...], *roots: object) -> Iterator[tuple[str, Any]]:
    """Yields the values of these types that objects hold, and how to get to each; see `generators_of`."""
    seen = {id(root) for root in roots}
    waiting = deque((type(root).__name__, root, 0) for root in roots if getattr(root, "draws", None) is not False)
    while waiting and len(seen) < MOST:
        path, owner, depth = waiting.popleft()
        for name, value, written in _held(owner):
            if isinstance(value, PLAIN):
                if isinstance(value, kinds):
                    yield path + written.format(name), value
                continue
            if id(value) in seen or says_yes(value, "seeds_itself"):
                continue
            seen.add(id(value))
            if isinstance(value, kinds):
                yield path + written.format(name), value
            elif written == ATTRIBUTE and name in AROUND:
                waiting.append((path + written.format(name), value, 0))
            elif depth + 1 < DEPTH:
                waiting.append((path + written.format(name), value, depth + 1))


ATTRIBUTE, ENTRY = ".{}", "[{!r}]"


def _held(owner: object) -> Iterable[tuple[Any, Any, str]]:
    """Returns what an object holds: the name, the value, and how the name is written behind the object."""
    if isinstance(owner, (list, tuple)):
        return ((place, value, ENTRY) for place, value in enumerate(owner[:LONGEST]) if len(owner) <= LONGEST)
    if isinstance(owner, Mapping):
        if type(owner) is not dict or len(owner) > LONGEST:
            return ()
        return ((name, value, ENTRY) for name, value in owner.items())
    return ((name, value, ATTRIBUTE) for name, value in (getattr(owner, "__dict__", None) or {}).items())


class OwnGenerators:
    """The generators that a dataset and its transforms hold."""

    def __init__(self, *roots: object) -> None:
        self._generators = [found.generator for found in generators_of(*roots) if _can_be_seeded(found.generator)]

    def __bool__(self) -> bool:
        return bool(self._generators)

    def seed(self, key: int) -> None:
        """Begins a stream in each generator, of which the key and the number of the generator decide."""
        for number, generator in enumerate(self._generators):
            word = mix((key + (number + 1) * GOLDEN) & MASK)
            if isinstance(generator, np.random.Generator):
                bits: Any = generator.bit_generator
                bits.state = type(bits)(word).state
            elif isinstance(generator, np.random.RandomState):
                generator.seed(word & 0xFFFFFFFF)
            elif isinstance(generator, random.Random):
                generator.seed(word)
            else:
                generator.manual_seed(word)

    def states(self) -> list[Any]:
        """Returns the states of the generators, to be compared and for `restore`."""
        return [_state(generator) for generator in self._generators]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Leaves the generators as they were."""
        before = self.states()
        try:
            yield
        finally:
            self.restore(before)

    def restore(self, states: list[Any]) -> None:
        """Puts the generators into the states that `states` returned."""
        for generator, state in zip(self._generators, states, strict=True):
            _restore(generator, state)


def digest(generator: Any) -> int:
    """Returns a checksum of the state of a generator; the same one for all whose numbers do not come of a state."""
    if not _can_be_seeded(generator):
        return 0
    return crc32(repr(_state(generator)).encode())


def _can_be_seeded(generator: Any) -> bool:
    """Tells whether a generator makes its numbers here, and is of a kind that takes a number as seed."""
    if isinstance(generator, torch.Generator):
        return generator.device.type == "cpu"
    if isinstance(generator, np.random.Generator):
        return type(generator.bit_generator).__module__.startswith("numpy.")
    return not isinstance(generator, random.SystemRandom)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state().numpy().tobytes()


def _plain(state: Any) -> Any:
    """Returns a state of NumPy with its arrays as bytes and dtype, which compare as a whole."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return (state.dtype.str, state.tobytes())
    return state


def _arrays(state: Any) -> Any:
    """Undoes `_plain`."""
    if isinstance(state, dict):
        return {name: _arrays(value) for name, value in state.items()}
    if isinstance(state, tuple):
        return np.frombuffer(state[1], np.dtype(state[0]))
    return state


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _arrays(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_arrays(state))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
