"""Swipes over a keyboard, invented: for each word the path of a finger through its letters.

    python examples/trajectories/generate.py swipes --trajectories 1000000

Words come as often as in English (Zipf's law); each user has a speed, an unsteadiness and an offset of their own. The
screen reports a point about every 60th of a second, not evenly, now and then twice with the same time, and the finger
sometimes rests. Written in blocks, so that memory does not grow with the number of trajectories.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import keyboard
import numpy as np
import numpy.typing as npt

from headrace import open_writer
from headrace.types import Block, Field, Ragged, Schema

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]

SCHEMA = Schema((Field("points", "ragged", np.dtype(np.float32), (3,)), Field("word", "text")))
"""points: x and y in pixels, and the time in ms since the finger came down; one row a point."""

WORDS = Path(__file__).with_name("words.txt").read_text().split()
"""Common English words, roughly the most frequent first."""

INTERVAL = 1000 / 60
"""ms between two points, on average."""

SHORTEST, LONGEST = 5, 150
"""Points of a trajectory."""

USERS = 1000
BLOCK = 1 << 14
"""Trajectories made at a time. Block number k depends on (seed, k) alone."""


def blocks(count: int, seed: int = 0) -> Iterator[Block]:
    """Yields `count` trajectories, in blocks of at most `BLOCK`; the same for the same seed.

    The first trajectories are the same whatever `count` is.
    """
    for number, start in enumerate(range(0, count, BLOCK)):
        block = _block(np.random.default_rng((seed, number)), seed)
        yield block.rows(0, min(BLOCK, count - start))


def write(path: str | Path, count: int, seed: int = 0, form: str = "memmap") -> None:
    """Writes trajectories to a new folder, which `headrace.open` opens."""
    writer = open_writer(path, SCHEMA, form)
    try:
        for block in blocks(count, seed):
            writer.append(block)
    except BaseException:
        writer.abort()
        raise
    writer.seal()


def _block(rng: np.random.Generator, seed: int) -> Block:
    chances = 1 / (np.arange(len(WORDS)) + 2.7)  # Zipf's law, as Mandelbrot wrote it
    words = rng.choice(len(WORDS), BLOCK, p=chances / chances.sum())
    users = rng.integers(0, USERS, BLOCK)
    traits = _traits(seed)[:, users]
    letters, ends, arrivals, pace = _strokes(rng, words, traits)
    lengths = np.clip(np.rint(pace / INTERVAL), SHORTEST, LONGEST).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    owner = np.repeat(np.arange(BLOCK), lengths)
    times, progress = _clock(rng, offsets, owner)
    points = np.empty((offsets[-1], 3), np.float32)
    points[:, :2] = _positions(rng, owner, progress, (letters, ends, arrivals), traits).T
    points[:, 2] = times
    return Block(SCHEMA, {"points": Ragged(points, offsets), "word": _VOCABULARY.take(words)})


def _vocabulary() -> Ragged:
    offsets = np.concatenate([[0], np.cumsum([len(word) for word in WORDS])]).astype(np.int64)
    return Ragged(np.frombuffer("".join(WORDS).encode(), np.uint8), offsets)


_VOCABULARY = _vocabulary()


def _traits(seed: int) -> Floats:
    """Returns what distinguishes users [5, USERS]: pace, unsteadiness (px), offsets along x and y (px), bow."""
    rng = np.random.default_rng((seed, USERS, 0))
    pace = rng.lognormal(0, 0.25, USERS)
    steadiness = rng.gamma(4, 1.0, USERS)
    return np.stack([pace, steadiness, *rng.normal(0, 12, (2, USERS)), rng.normal(0, 0.08, USERS)])


def _strokes(rng: np.random.Generator, words: Keys, traits: Floats) -> tuple[Floats, Keys, Floats, Floats]:
    """Returns for all letters of all words, end to end: where the finger aims [2, letters]; where each word ends
    [words]; when it arrives there, as a share of the word's time, plus the word's number [letters]; and how long each
    word takes in ms [words]. A word of one letter gets it twice.
    """
    spelled = _VOCABULARY.take(words)
    single = np.repeat(spelled.stops - spelled.starts == 1, spelled.stops - spelled.starts)
    letters = np.repeat(spelled.values, np.where(single, 2, 1))
    lengths = np.maximum(spelled.stops - spelled.starts, 2)
    ends = np.cumsum(lengths)
    word = np.repeat(np.arange(len(words)), lengths)
    aims = keyboard.CENTRES[letters - (ord("a") - 1)].T + rng.normal(0, 1, (2, len(letters))) * traits[1, word] * 4
    stretch = np.hypot(*np.diff(aims, axis=1, prepend=0)) / keyboard.KEY_WIDTH
    takes = (70 + 95 * np.sqrt(stretch)) * rng.lognormal(0, 0.2, len(letters))  # after Fitts: longer ways, faster
    takes[ends - lengths] = 0
    summed = np.cumsum(takes)
    begun = summed[ends - lengths]
    total = summed[ends - 1] - begun
    arrivals = (summed - np.repeat(begun, lengths)) / np.repeat(total, lengths) + word
    return aims, ends, arrivals, total * traits[0]


def _clock(rng: np.random.Generator, offsets: Keys, owner: Keys) -> tuple[Floats, Floats]:
    """Returns the time of each point in ms, and how much of its word is done by then, from 0 to 1."""
    total = int(offsets[-1])
    chance = rng.random(total, np.float32)
    steps = INTERVAL * rng.uniform(0.7, 1.3, total)
    steps[chance < 0.015] = 0  # reported twice
    rests = np.where(chance > 0.99, rng.uniform(40, 200, total), 0)
    steps[offsets[:-1]] = rests[offsets[:-1]] = 0
    steps[offsets[:-1] + 1] = INTERVAL  # so that no word takes no time
    moved, rested = np.cumsum(steps), np.cumsum(rests)
    moved -= moved[offsets[:-1]][owner]
    rested -= rested[offsets[:-1]][owner]
    return np.rint(moved + rested), moved / moved[offsets[1:] - 1][owner]


def _positions(
    rng: np.random.Generator, owner: Keys, progress: Floats, way: tuple[Floats, Keys, Floats], traits: Floats
) -> Floats:
    """Returns x and y of each point in pixels [2, points]."""
    aims, ends, arrivals = way
    following = np.searchsorted(arrivals, owner + np.minimum(progress, 1 - 1e-9), "right")
    following = np.minimum(following, ends[owner] - 1)
    before, after = arrivals[following - 1], arrivals[following]
    share = np.clip((owner + progress - before) / np.maximum(after - before, 1e-9), 0, 1)
    jerk = share**3 * (10 + share * (6 * share - 15))  # minimum jerk: Flash and Hogan, 1985
    share = 0.35 * share + 0.65 * jerk  # a finger that goes on does not come to rest at each key
    start, way_there = aims[:, following - 1], aims[:, following] - aims[:, following - 1]
    _, unsteadiness, right, down, bow = traits
    bent = bow[owner] * np.sin(np.pi * share)
    x, y = start + share * way_there + bent * np.stack([-way_there[1], way_there[0]])
    shaking = rng.standard_normal((2, len(owner)), np.float32) * (unsteadiness[owner] * 0.6)
    return np.stack([x + right[owner] + shaking[0], y + down[owner] + shaking[1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where to write; must not exist yet")
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", default="memmap", help="any of headrace's: memmap, arrow, parquet ...")
    given = parser.parse_args()
    begun = time.perf_counter()
    write(given.folder, given.trajectories, given.seed, given.format)
    print(f"{given.trajectories:,} trajectories in {given.folder}, {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
