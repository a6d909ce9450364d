"""A shuffle without memory: a keyed bijection of 0 .. n-1 that can be entered anywhere.

An alternating Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002) permutes the
words of just enough bits; a word outside of 0 .. n-1 is permuted again until it falls inside (cycle walking, fewer than
two steps on average). Very short ranges are sorted by random words instead, which is exactly uniform.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.counter import stream_key, words_at

ROUNDS = 8
"""An even number, so that the halves have their widths again at the end."""

SORTED = 256
"""Ranges up to this length are sorted."""

FACTOR_1, FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Keys = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Permutation:
    """The permutation of 0 .. length-1 that belongs to `key`. Takes constant memory, up to a length of 2**62."""

    def __init__(self, length: int, key: int) -> None:
        self.length = length
        self._table: Keys | None = None
        if length <= SORTED:
            self._table = np.argsort(words_at(key, np.arange(length)), kind="stable")
            return
        bits = (length - 1).bit_length()
        self._widths = (bits // 2, bits - bits // 2)
        self._round_keys = [np.uint64(stream_key(key, number)) for number in range(ROUNDS)]

    def at(self, positions: Keys) -> Keys:
        """Returns the keys at `positions`, integers in 0 .. length-1 of any shape; a new array of that shape."""
        return self._table[positions] if self._table is not None else self._walk(positions, self._forward)

    def inverse(self, keys: Keys) -> Keys:
        """Returns the positions of `keys`: `inverse(at(p)) == p`."""
        return np.argsort(self._table)[keys] if self._table is not None else self._walk(keys, self._backward)

    def _walk(self, start: Keys, step: object) -> Keys:
        advance = self._forward if step == self._forward else self._backward
        words = advance(np.asarray(start, np.int64).astype(np.uint64).ravel())
        outside = np.flatnonzero(words >= self.length)
        while outside.size:
            words[outside] = advance(words[outside])
            outside = outside[words[outside] >= self.length]
        return words.astype(np.int64).reshape(np.shape(start))

    def _forward(self, words: Words) -> Words:
        left_width, right_width = self._widths
        left, right = words >> np.uint64(right_width), words & _mask(right_width)
        for key in self._round_keys:
            left ^= _scramble(right, key) & _mask(left_width)
            left, right = right, left
            left_width, right_width = right_width, left_width
        return (left << np.uint64(right_width)) | right

    def _backward(self, words: Words) -> Words:
        left_width, right_width = self._widths
        left, right = words >> np.uint64(right_width), words & _mask(right_width)
        for key in reversed(self._round_keys):
            left, right = right, left
            left_width, right_width = right_width, left_width
            left ^= _scramble(right, key) & _mask(left_width)
        return (left << np.uint64(right_width)) | right


def _mask(width: int) -> np.uint64:
    return np.uint64((1 << width) - 1)


def _scramble(words: Words, key: np.uint64) -> Words:
    mixed = words + key
    mixed *= FACTOR_1
    mixed ^= mixed >> np.uint64(29)
    mixed *= FACTOR_2
    mixed >>= np.uint64(31)
    return mixed
