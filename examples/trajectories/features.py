"""Features of swipes, each step written twice: for one sample, and for a whole block of them, with equal results.

A sample comes in as `points` float32 [n, 3] (x, y in pixels, time in ms) and `word`; it leaves as

    features  float32 [n, 9]    one row a point; the columns are named below
    keys      uint8 [n]         the token of the key nearest to each point
    target    uint8 [letters]   the tokens of the word

The table of features is allocated once, by the first step; the others write columns of their own into it: what a step
gets is its own to change. The last two do not need each other and may come in any order, so the list can be cut between
them in two ways.

A function for one sample is what most people write. Its twin for a block gets the same dict with columns in place of
values: all samples end to end in a `headrace.types.Ragged`, strings as a list. It calls NumPy as often for 10,000
samples as the other one for a single one, which is why it is many times quicker.
"""

from __future__ import annotations

from typing import Any

import keyboard
import numpy as np
import numpy.typing as npt

import headrace

Floats = npt.NDArray[np.float32]
Sample = dict[str, Any]

X, Y, TIME, VX, VY, AX, AY, SPEED, DISTANCE = COLUMNS = range(9)
"""Position (key widths from the middle of the keyboard), seconds since the finger came down, velocity (key widths per
second), acceleration, speed, and the distance to the middle of the nearest key (key widths)."""

SHORTEST = np.float32(0.001)
"""Seconds that two points lie apart at least, whatever their times say: screens report some points twice."""

MIDDLE, SCALE = np.array(keyboard.MIDDLE, np.float32), np.float32(1 / keyboard.KEY_WIDTH)
MILLI = np.float32(0.001)

# -- one sample --------------------------------------------------------------------------------------------------------


def normalise(sample: Sample) -> Sample:
    """points -> features, with position and time; the columns of later steps are zero."""
    points = sample["points"]
    features = np.zeros((len(points), len(COLUMNS)), np.float32)
    features[:, :2] = (points[:, :2] - MIDDLE) * SCALE
    features[:, TIME] = (points[:, 2] - points[:1, 2]) * MILLI
    return {"features": features, "word": sample["word"]}


def derivatives(sample: Sample) -> Sample:
    """features -> features with velocity, acceleration and speed."""
    features = sample["features"]
    if len(features) > 1:
        position, time = features[:, :2].T, features[:, TIME]
        steps = np.maximum(time[1:] - time[:-1], SHORTEST)
        weights = steps[1:] / (steps[1:] + steps[:-1])
        velocity = _gradient(position, steps, weights)
        features[:, VX : VY + 1] = velocity.T
        features[:, AX : AY + 1] = _gradient(velocity, steps, weights).T
        features[:, SPEED] = np.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1])
    return sample


def tokens(sample: Sample) -> Sample:
    """features, word -> features with the distance to the nearest key, that key, and the word's letters."""
    features = sample["features"]
    keys, features[:, DISTANCE] = _nearest(features[:, X], features[:, Y])
    return {"features": features, "keys": keys, "target": keyboard.tokens(sample["word"])}


# -- a block of samples ------------------------------------------------------------------------------------------------


def normalise_all(block: Sample) -> Sample:
    """`normalise` of each sample of a block."""
    ragged = block["points"]
    points, offsets = ragged.values, ragged.offsets
    features = np.zeros((len(points), len(COLUMNS)), np.float32)
    features[:, X] = (points[:, 0] - MIDDLE[0]) * SCALE
    features[:, Y] = (points[:, 1] - MIDDLE[1]) * SCALE
    time = points[:, 2].copy()
    some = ragged.lengths > 0
    time -= np.repeat(time[offsets[:-1][some]], ragged.lengths[some])
    features[:, TIME] = time * MILLI
    return {"features": ragged.with_values(features), "word": block["word"]}


def derivatives_all(block: Sample) -> Sample:
    """`derivatives` of each sample of a block."""
    ragged = block["features"]
    features = ragged.values
    position, time = np.ascontiguousarray(features[:, :2].T), np.ascontiguousarray(features[:, TIME])
    steps = np.maximum(time[1:] - time[:-1], SHORTEST)
    weights = steps[1:] / (steps[1:] + steps[:-1])
    edges = _edges(ragged)
    velocity = _gradient_all(position, steps, weights, edges)
    acceleration = _gradient_all(velocity, steps, weights, edges)
    for column, values in zip((VX, VY, AX, AY), (*velocity, *acceleration), strict=True):
        features[:, column] = values
    features[:, SPEED] = np.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1])
    return block


def tokens_all(block: Sample) -> Sample:
    """`tokens` of each sample of a block."""
    ragged, words = block["features"], block["word"]
    features = ragged.values
    keys, features[:, DISTANCE] = _nearest(features[:, X].copy(), features[:, Y].copy())
    offsets = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) for word in words], out=offsets[1:])
    target = headrace.types.Ragged(keyboard.tokens("".join(words)), offsets)
    return {"features": ragged, "keys": ragged.with_values(keys), "target": target}


ONE_BY_ONE = (normalise, derivatives, tokens)
IN_BLOCKS = (normalise_all, derivatives_all, tokens_all)
"""The same steps, in the order in which a list of them is written."""

# -- what both share ---------------------------------------------------------------------------------------------------


def _gradient(values: Floats, steps: Floats, weights: Floats) -> Floats:
    """Returns the derivative of values [2, n] whose neighbours lie `steps` [n - 1] apart; n > 1.

    Of second order within, one-sided at both ends, as in `numpy.gradient`. `weights` [n - 2]: the step after a point
    over the sum of both steps around it.
    """
    slopes = (values[:, 1:] - values[:, :-1]) / steps
    out = np.empty(values.shape, np.float32)
    out[:, 0], out[:, -1] = slopes[:, 0], slopes[:, -1]
    out[:, 1:-1] = slopes[:, 1:] + weights * (slopes[:, :-1] - slopes[:, 1:])
    return out


def _gradient_all(values: Floats, steps: Floats, weights: Floats, edges: tuple[Any, Any, Any]) -> Floats:
    """`_gradient` of samples that lie end to end: first as if they were one, then the ends of each are put right."""
    first, last, single = edges
    slopes = (values[:, 1:] - values[:, :-1]) / steps
    out = np.empty(values.shape, np.float32)
    np.subtract(slopes[:, :-1], slopes[:, 1:], out=out[:, 1:-1])
    out[:, 1:-1] *= weights
    out[:, 1:-1] += slopes[:, 1:]
    out[:, first], out[:, last], out[:, single] = slopes[:, first], slopes[:, last - 1], 0
    return out


def _edges(ragged: Any) -> tuple[Any, Any, Any]:
    """Returns the places of the first and the last points of all samples of two or more, and of those of one."""
    offsets, lengths = ragged.offsets, ragged.lengths
    several = lengths > 1
    return offsets[:-1][several], offsets[1:][several] - 1, offsets[:-1][lengths == 1]


def _nearest(x: Floats, y: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Returns the tokens of the keys nearest to points [n], and how far their middles are."""
    keys = keyboard.nearest(x, y)
    right, down = x - keyboard.CENTRES_IN_KEYS[0].take(keys), y - keyboard.CENTRES_IN_KEYS[1].take(keys)
    return keys, np.sqrt(right * right + down * down)
