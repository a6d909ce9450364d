"""A QWERTY keyboard on a screen: where the keys are, in pixels and in key widths, and which one is nearest.

A letter's token is its place in the alphabet, 1 .. 26; 0 stands for no letter, so that batches filled up with zeros
are filled up with no letters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
SHIFTS = (0.0, 0.5, 1.5)
"""How far each row is moved to the right, in key widths."""

KEY_WIDTH, KEY_HEIGHT = 108.0, 162.0
"""Pixels; the keyboard fills a screen that is 1,080 pixels wide."""

MIDDLE = (540.0, 243.0)
"""The middle of the keyboard, in pixels from its upper left corner: where normalised coordinates are 0."""

LETTERS = 26


def _centres() -> npt.NDArray[np.float32]:
    centres = np.zeros((LETTERS + 1, 2), np.float32)
    for row, (letters, shift) in enumerate(zip(ROWS, SHIFTS, strict=True)):
        for place, letter in enumerate(letters):
            centres[ord(letter) - ord("a") + 1] = (place + shift + 0.5) * KEY_WIDTH, (row + 0.5) * KEY_HEIGHT
    return centres


CENTRES = _centres()
"""float32 [27, 2]: the middle of each key in pixels, by token; no key has token 0."""

CENTRES_IN_KEYS = np.ascontiguousarray(((CENTRES - np.float32(MIDDLE)) / np.float32(KEY_WIDTH)).T)
"""float32 [2, 27]: the same, normalised: x and y in key widths from the middle of the keyboard."""

CELLS = 32
"""Cells of the map below per key width."""

REACH = (6, 3)
"""How far the map goes from the middle, in key widths, along x and y; what lies outside belongs to its edge."""


def _map() -> npt.NDArray[np.uint8]:
    across, down = ((np.arange(2 * CELLS * reach) + 0.5) / CELLS - reach for reach in REACH)
    x, y = CENTRES_IN_KEYS[:, 1:]
    distances = (across[None, :, None] - x) ** 2 + (down[:, None, None] - y) ** 2
    return (np.argmin(distances, axis=2) + 1).astype(np.uint8)


NEAREST = _map()
"""uint8 [192, 384]: the token of the key nearest to each cell. Looking it up is many times quicker than 26 distances
for each point."""


def nearest(x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Returns the tokens of the keys nearest to points [n] in normalised coordinates; right to 1/32 of a key."""
    high, wide = NEAREST.shape
    column = np.minimum(np.maximum((x + REACH[0]) * CELLS, 0), wide - 1).astype(np.intp)
    row = np.minimum(np.maximum((y + REACH[1]) * CELLS, 0), high - 1).astype(np.intp)
    return NEAREST[row, column]


def tokens(word: str) -> npt.NDArray[np.uint8]:
    """Returns the tokens [letters] of a word of the letters a .. z."""
    return np.frombuffer(word.encode(), np.uint8) - np.uint8(ord("a") - 1)
