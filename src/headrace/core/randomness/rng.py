"""Random streams of samples: the same numbers for a sample whichever process, thread or machine loads it.

While a sample is loaded under `seed=`, `rng()` returns a generator that depends on (seed, epoch, position) alone, and
the global generators of `random`, NumPy and torch are seeded from the same key. Threads share the global generators, so
there only `rng()` can be told apart by sample.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.randomness.counter_based import GOLDEN, MASK, mix, stream_key
from headrace.core.randomness.own_generators import OwnGenerators

START, SAMPLE, BATCH = 1, 2, 3
"""What a stream is for: the start of an iterator, a sample, or the collation of a batch."""


class _CurrentStream(threading.local):
    key: int | None = None
    generator: np.random.Generator | None = None
    reusable: np.random.Generator | None = None
    """What `rng()` of one sample after the other returns: a new key takes a tenth of the time of a new generator."""
    unseeded: bool = False
    """Whether a batch is being made without seeds, to see whether anybody draws."""
    was_asked: bool = False
    """Whether somebody asked for `rng()` meanwhile."""
    batch: tuple[SampleStreams, Sequence[int] | npt.NDArray[np.int64]] | None = None
    """The streams that this thread follows, and the positions of the samples that are being made."""


_current = _CurrentStream()
_START = np.random.Philox(key=0).state


def rng() -> np.random.Generator:
    """Gives the random generator of the sample that is being loaded.

    With `seed=` its numbers depend only on the seed, the epoch and the sample's position: they are the same for any
    number of workers, any backend and any world size, and after a restart. Call `rng()` again in each `__getitem__` or
    transform: the generator is reused for the next sample. Without `seed=` each worker has its own stream, seeded as
    torch seeds workers; outside of a loader it follows an earlier `torch.manual_seed`.

    With `seed=` it is NumPy's Philox, a counter-based generator, which begins a stream at once (Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", SC 2011); otherwise NumPy's SFC64, which draws faster (Doty-Humphrey,
    PractRand).

    Returns:
        NumPy's generator, which headrace keeps.

    Examples:
        >>> class Noise(headrace.Dataset):
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, key):
        ...         return headrace.rng().normal()
        >>> batches = list(headrace.DataLoader(Noise(), batch_size=4, seed=0))
    """
    if _current.unseeded:
        _current.was_asked = True

    if _current.generator is None:
        if _current.batch is not None and _current.key is not None:
            _current.generator = _keyed(_current.key)
        else:
            bits: np.random.BitGenerator
            if _current.key is not None:
                bits = np.random.Philox(key=_current.key)
            else:
                bits = np.random.SFC64(stream_key(torch.initial_seed()))
            _current.generator = np.random.Generator(bits)

    return _current.generator


def _keyed(key: int) -> np.random.Generator:
    """Returns this thread's generator of samples, at the beginning of a stream."""
    if _current.reusable is None:
        _current.reusable = np.random.Generator(np.random.Philox(key=0))
    state: Any = _START
    _current.reusable.bit_generator.state = state | {"state": {**state["state"], "key": np.array([key, 0], np.uint64)}}
    return _current.reusable


def begin_stream(key: int | None) -> None:
    """Has `rng()` of this thread begin the stream with this key; None: no stream of the loader's."""
    _current.key = key
    _current.generator = None
    _current.batch = None


def begin_unseeded() -> None:
    """From here on notes whether this thread asks for `rng()`. What that gives meanwhile is thrown away."""
    _current.generator = None
    _current.batch = None
    _current.was_asked = False
    _current.unseeded = True


def end_unseeded() -> bool:
    """Tells whether this thread asked for `rng()` since `begin_unseeded`."""
    _current.unseeded = False
    _current.generator = None
    return _current.was_asked


def drawing() -> Any:
    """Returns the state of this thread's `rng()`, to be compared; None if nobody has asked for it yet."""
    generator = _current.generator
    if generator is None:
        return None
    return str(generator.bit_generator.state)


def follows_streams() -> bool:
    """Tells whether samples have streams of their own at the moment, which `enter_step` begins."""
    return _current.batch is not None


def enter_step(place: int, step: int) -> None:
    """Begins the stream of one step of a pipeline, for sample number `place` of those that are being made together.

    Each step of a sample has a stream of its own, so that its numbers do not depend on the steps before it. Without
    `seed=` there is nothing to begin: numbers come from the worker's generators, one sample after the other.
    """
    if _current.batch is not None:
        streams, positions = _current.batch
        streams.enter_step(int(positions[place]), step)


@contextlib.contextmanager
def sample_streams() -> Iterator[Callable[[int], None]]:
    """Has samples that are read ahead draw from streams of their own, by their numbers.

    Yields what begins the stream of a sample. Behind the block, the stream of the sample goes on for which they are
    read. Without `seed=`, or where nobody follows streams, it does nothing.
    """
    batch = _current.batch
    if batch is None:
        yield lambda number: None
        return

    streams, positions = batch
    try:
        yield lambda number: streams.enter(SAMPLE, number)
    finally:
        streams.enter_batch(positions)


class SampleStreams:
    """The streams of one epoch, or of one worker's part of it. `words` (integers) name them.

    With `watch` it finds out, at a price, whether anybody draws from the global generators: see `drawn`.
    """

    def __init__(self, *words: int, seed_globals: bool, watch: bool = False, own: OwnGenerators | None = None) -> None:
        """own: those of the dataset, which are seeded wherever the global ones are."""
        self._own = OwnGenerators() if own is None else own
        self._keys = _keys(words)
        self._entered: tuple[int, int] | None = None
        self._seed_globals = seed_globals
        self._watch = watch
        self._seeded: list[Any] | None = None
        self.drawn = False
        """Whether the global generators or the dataset's own were drawn from between calls of `enter` or `pause`."""

    def enter(self, purpose: int, position: int = 0) -> None:
        """Begins the stream of what is made next."""
        self._entered = purpose, position
        self._begin(mix((self._keys[purpose] + (position + 1) * GOLDEN) & MASK))
        if purpose == SAMPLE:
            _current.batch = (self, (position,))
        else:
            _current.batch = None

    def enter_batch(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Begins the stream of the first of several samples that are made together; see `enter_step`."""
        self.enter(SAMPLE, int(positions[0]))
        _current.batch = self, positions

    def enter_step(self, position: int, step: int) -> None:
        """Begins the stream of one step (0, 1, ...) of the sample at a position."""
        key = mix((self._keys[SAMPLE] + (position + 1) * GOLDEN) & MASK)
        batch = _current.batch
        self._begin(mix((key + (step + 1) * GOLDEN) & MASK))
        _current.batch = batch

    def _begin(self, key: int) -> None:
        begin_stream(key)
        if self._watch:
            self._look()

        if self._seed_globals:
            random.seed(key)
            np.random.seed(key & 0xFFFFFFFF)
            torch.default_generator.manual_seed(key)
            self._own.seed(key)

        if self._watch:
            self._seeded = self._states()

    def split(self, *words: int) -> None:
        """From here on, also within a sample that was begun, the streams are others, which `words` name."""
        self._keys = _keys(words)
        if self._entered is not None:
            self.enter(*self._entered)

    def pause(self) -> None:
        """Others may draw from the global generators until the next call of `enter`."""
        if self._watch:
            self._look()
            self._seeded = None

    def stop_watching(self) -> None:
        """Ends the search."""
        self._watch = False
        self._seeded = None

    def _look(self) -> None:
        self.drawn = self.drawn or (self._seeded is not None and self._seeded != self._states())

    def _states(self) -> list[Any]:
        return [comparable_states(), self._own.states()]


def _keys(words: tuple[int, ...]) -> dict[int, int]:
    return {purpose: stream_key(*words, purpose) for purpose in (START, SAMPLE, BATCH)}


def comparable_states() -> list[Any]:
    """Returns the states of the three global generators, to be compared: other ones if anybody drew from them."""
    _, keys, *position = np.random.get_state(legacy=True)
    return [
        random.getstate(),
        np.asarray(keys).tobytes(),
        position,
        torch.default_generator.get_state().numpy().tobytes(),
    ]


class GlobalStates(NamedTuple):
    """The states of the three global generators, each as its own `set_state` takes it."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    """uint8 [n]"""

    def holds_now(self) -> bool:
        """Tells whether the generators are in these states at the moment."""
        now = global_states()
        if now.python != self.python or not torch.equal(now.torch, self.torch):
            return False

        (_, keys, *rest) = now.numpy
        (_, own_keys, *own_rest) = self.numpy
        return rest == own_rest and np.array_equal(keys, own_keys)


def global_states() -> GlobalStates:
    """Returns the states of the three global generators."""
    return GlobalStates(random.getstate(), np.random.get_state(legacy=True), torch.default_generator.get_state())


def set_global_states(states: GlobalStates) -> None:
    """Puts back what `global_states` returned."""
    random.setstate(states.python)
    np.random.set_state(states.numpy)
    torch.default_generator.set_state(states.torch)


@contextlib.contextmanager
def global_states_kept() -> Iterator[None]:
    """Leaves the global generators, and this thread's `rng()`, as they were."""
    # `reusable` is one object that `rng()` sets to another stream for each sample. Whoever holds it now would find it
    # moved, so the block gets another one.
    before = global_states()
    ours = vars(_current).copy()
    _current.reusable = None
    try:
        yield
    finally:
        try:
            _put_back(before, ours)
        except BaseException:
            _put_back(before, ours)  # a signal handler has raised in the middle
            raise


def _put_back(states: GlobalStates, ours: dict[str, Any]) -> None:
    set_global_states(states)
    vars(_current).clear()
    vars(_current).update(ours)
