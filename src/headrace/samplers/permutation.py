"""A shuffle without memory: a keyed bijection of 0 .. n-1 that can be entered anywhere.

An alternating Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002) permutes the
words of just enough bits; a word outside of 0 .. n-1 is permuted again until it falls inside (cycle walking, fewer than
two steps on average). Ranges of up to 8, for which the network is too small, are sorted by random words instead, which
makes all orders equally likely. A range of 2**k has even permutations only, as with every such network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import GOLDEN, MASK, mix_words, words_at

ROUNDS = 10
"""An even number, so that the halves have their widths again at the end."""

SORTED = 8
"""Ranges up to this length are sorted."""

LARGEST = 1 << 62

FACTOR_1, FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Keys = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
RoundKey = Callable[[int], Any]


class Permutation:
    """The permutation of 0 .. length-1 that belongs to `key`. Takes constant memory, up to a length of 2**62."""

    def __init__(self, length: int, key: int) -> None:
        self.length = checked_length(length)
        if length <= SORTED:
            self._ranks: Keys | None = _ranks(words_at(key, np.arange(length)))
        else:
            self._ranks = None

        left = _bits(length) // 2
        self._widths = np.uint64(left), np.uint64(_bits(length) - left)
        self._round_keys = words_at(key, np.arange(ROUNDS))

    def at(self, positions: Keys) -> Keys:
        """Returns the keys at `positions`, integers in 0 .. length-1 of any shape; a new array of that shape."""
        if self._ranks is not None:
            return self._ranks[positions]
        return self._walk(positions, _forward)

    def inverse(self, keys: Keys) -> Keys:
        """Returns the positions of `keys`: `inverse(at(p)) == p`."""
        if self._ranks is not None:
            return np.argsort(self._ranks)[keys]
        return self._walk(keys, _backward)

    def _walk(self, start: Keys, network: Callable[[Words, Any, Any, RoundKey], Words]) -> Keys:
        words = network(_words(start), *self._widths, self._round_keys.__getitem__)
        outside = np.flatnonzero(words >= self.length)
        while outside.size:
            words[outside] = again = network(words[outside], *self._widths, self._round_keys.__getitem__)
            outside = outside[again >= self.length]

        return words.astype(np.int64).reshape(np.shape(start))


class Permutations:
    """Many permutations at once: element by element one of some lengths, and a key.

    `Permutations(lengths).at(rows, keys, p)[i] == Permutation(lengths[rows[i]], keys[i]).at(p)[i]`. Holds three words
    for each of `lengths`. Several times slower than `Permutation`, whose key and length hold for a whole array.
    """

    def __init__(self, lengths: npt.ArrayLike) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        bits = np.array([_bits(checked_length(length)) for length in self.lengths.tolist()], np.uint64)
        self._left = bits // np.uint64(2)
        self._right = bits - self._left

    def at(self, rows: Keys, keys: Words, positions: Keys) -> Keys:
        """Returns the key at each of `positions` in the permutation of 0 .. lengths[row]-1; all of shape (n,)."""
        lengths = self.lengths[rows]
        words = _words(positions)
        # Elements of short ranges are looked up, all others walk through the network until none is outside.
        todo = np.flatnonzero(lengths > SORTED)
        if todo.size < words.size:
            few = np.flatnonzero(lengths <= SORTED)
            words[few] = _ranks_at(keys[few], lengths[few], positions[few])

        while todo.size:
            row = rows[todo]
            words[todo] = again = _forward(words[todo], self._left[row], self._right[row], _keyed(keys[todo]))
            todo = todo[again >= lengths[todo].astype(np.uint64)]

        return words.astype(np.int64)


def checked_length(length: int) -> int:
    """Returns `length` if a range of that length can be permuted. Raises `UsageError` otherwise."""
    if 0 <= length <= LARGEST:
        return length
    raise UsageError.about("cannot shuffle that many", found=length, expected="a length from 0 to 2**62")


def _bits(length: int) -> int:
    return max(length - 1, 0).bit_length()


def _words(numbers: Keys) -> Words:
    return np.asarray(numbers, np.int64).astype(np.uint64).ravel()


def _ranks(words: Words) -> Keys:
    """Returns how many others are below each of the words, which all differ; shape (n,)."""
    return np.argsort(np.argsort(words)).astype(np.int64, copy=False)


def _ranks_at(keys: Words, lengths: Keys, positions: Keys) -> Words:
    """Returns `_ranks(words_at(key, arange(length)))[position]` for each element, of lengths up to `SORTED`."""
    steps = np.arange(1, SORTED + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    words = mix_words(keys[:, None] + steps)
    mine = np.take_along_axis(words, positions[:, None], 1)
    below = (words < mine) & (np.arange(SORTED) < lengths[:, None])
    ranks: Words = below.sum(axis=1, dtype=np.uint64)
    return ranks


def _keyed(keys: Words) -> RoundKey:
    """Returns what makes, of an array of keys, the round keys that `words_at(key, arange(ROUNDS))` makes of one."""
    return lambda number: mix_words(keys + np.uint64(GOLDEN * (number + 1) & MASK))


def _forward(words: Words, left_width: Any, right_width: Any, round_key: RoundKey) -> Words:
    left: Words = words >> right_width
    right: Words = words & _mask(right_width)
    for number in range(ROUNDS):
        left ^= _scramble(right, round_key(number)) & _mask(left_width)
        left, right = right, left
        left_width, right_width = right_width, left_width

    joined: Words = (left << right_width) | right
    return joined


def _backward(words: Words, left_width: Any, right_width: Any, round_key: RoundKey) -> Words:
    left: Words = words >> right_width
    right: Words = words & _mask(right_width)
    for number in reversed(range(ROUNDS)):
        left, right = right, left
        left_width, right_width = right_width, left_width
        left ^= _scramble(right, round_key(number)) & _mask(left_width)

    joined: Words = (left << right_width) | right
    return joined


def _mask(width: Any) -> Any:
    return (np.uint64(1) << width) - np.uint64(1)


def _scramble(words: Words, key: Any) -> Words:
    mixed: Words = words + key
    mixed *= FACTOR_1
    mixed ^= mixed >> np.uint64(29)
    mixed *= FACTOR_2
    mixed >>= np.uint64(31)
    return mixed
