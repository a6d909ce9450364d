"""Random numbers as a function: number `i` of stream `key`, without any state between calls.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), a bijection of 64-bit words. All arithmetic is modulo 2**64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

Words = npt.NDArray[np.uint64]


def stream_key(*words: int) -> int:
    """Returns a 64-bit key that depends on every bit and on the order of `words` (any integers)."""
    key = 0
    for word in words:
        key = mix(key ^ mix((word & MASK) + GOLDEN & MASK)) + GOLDEN & MASK
    return mix(key)


def mix(word: int) -> int:
    """Returns a bijection of the 64-bit word."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def mix_words(words: Words) -> Words:
    """Returns the mixing function of every element; a new array of the same shape."""
    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def words_at(key: int, positions: npt.NDArray[Any]) -> Words:
    """Returns the 64-bit words of stream `key` at `positions` (non-negative integers); the same shape."""
    counters = positions.astype(np.uint64)  # a copy
    counters += np.uint64(1)
    counters *= np.uint64(GOLDEN)
    counters += np.uint64(key)
    return mix_words(counters)


def uniforms_at(key: int, positions: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns numbers in [0, 1) with 53 random bits; the same shape as `positions`."""
    return (words_at(key, positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def spread(length: int, count: int) -> npt.NDArray[np.int64]:
    """Returns up to `count` whole numbers from 0 to length-1, int64, ascending: one at random of each equal stretch.

    So they lie all over, and are in step with nothing that comes again and again in the data. Both ends are among them.
    """
    if length <= count:
        return np.arange(length)
    edges = np.arange(count + 1) * length // count
    numbers = edges[:-1] + (uniforms_at(length, edges[:-1]) * np.diff(edges)).astype(np.int64)
    numbers[0] = 0
    numbers[1:][-1:] = length - 1
    return numbers
