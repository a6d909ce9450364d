"""Samples with everything that a column can hold, steps on them, and what tells two samples apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import headrace
from headrace.types import Ragged


def same(one: Any, other: Any) -> bool:
    """Tells whether two samples or batches are equal bit by bit, their types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, (float, np.generic)):
        return (
            np.asarray(one).dtype == np.asarray(other).dtype
            and np.asarray(one).tobytes() == np.asarray(other).tobytes()
        )
    return bool(one == other)


def sample(number: int, seed: int) -> dict[str, Any]:
    """Returns sample number `number`: parts of every type, some of which differ in shape, at least among 0 and 1."""
    rng = np.random.default_rng([seed, number])
    height, width, length = (4 - number, 2 + number, 4 - number) if number < 2 else rng.integers(0, 5, 3)
    return {
        "xy": rng.random((int(length), 2), dtype=np.float32),
        "image": rng.integers(0, 255, (int(height), int(width), 3)).astype(np.uint8),
        "id": number,
        "weight": float(rng.random()) if number % 5 else float("nan"),
        "even": number % 2 == 0,
        "word": "wörd " * int(rng.integers(0, 3)),
        "raw": rng.bytes(int(rng.integers(0, 4))),
        "tensor": torch.from_numpy(rng.random(3)),
        "scalar": np.int16(number),
        "inner": {"pair": (np.float32(number), [number, -number]), 7: np.array(number)},
        "nothing": None,
    }


def samples(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns several of them."""
    return [sample(number, seed) for number in range(count)]


def scaled(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "xy": one["xy"] * np.float32(3)}


def in_place(one: dict[str, Any]) -> dict[str, Any]:
    one = {**one, "xy": one["xy"].copy()}
    one["xy"] += 1
    return one


def longer(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "xy": np.repeat(one["xy"], 2, axis=0), "image": one["image"][:, ::-1]}


def counted(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "points": len(one["xy"]), "tensor": one["tensor"].float() + one["id"]}


@headrace.step(batched=True)
def shifted(batch: dict[str, Any]) -> dict[str, Any]:
    xy: Ragged = batch["xy"]
    return {**batch, "xy": xy.with_values(xy.values - np.float32(0.5))}


@headrace.step(batched=True)
def summed(batch: dict[str, Any]) -> dict[str, Any]:
    xy: Ragged = batch["xy"]
    return {**batch, "sum": np.array([float(xy[place].sum()) for place in range(len(xy))]), "length": xy.lengths}


@headrace.step(batched=True, on="xy")
def first_half(xy: Ragged) -> Ragged:
    lengths = xy.lengths // 2
    values = np.concatenate([xy.values[:0], *(xy[place][: lengths[place]] for place in range(len(xy)))])
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))


@headrace.step(random=True)
def noisy(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "xy": one["xy"] + headrace.rng().normal(size=one["xy"].shape).astype(np.float32)}


@headrace.step(random=True, batched=True)
def jittered(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "scalar": batch["scalar"] + headrace.rng().integers(0, 9, len(batch["scalar"])).astype(np.int16)}


STEPS = (scaled, in_place, longer, counted, shifted, summed, first_half)

lists_of_steps = st.lists(st.sampled_from(STEPS), max_size=4)


def applied(steps: Any, one: Any) -> Any:
    """Returns a sample with steps done the plain way: one after the other; batched ones by what they do to one."""
    for step in steps:
        one = after_columns(PLAINLY[step.name](one)) if getattr(step, "batched", False) else step(one)
    return one


PLAINLY = {
    "shifted": lambda one: {**one, "xy": one["xy"] - np.float32(0.5)},
    "summed": lambda one: {**one, "sum": np.float64(one["xy"].sum()), "length": np.int64(len(one["xy"]))},
    "first_half": lambda one: {**one, "xy": one["xy"][: len(one["xy"]) // 2]},
}
"""What the batched steps do to a single sample, written without columns."""


def after_columns(one: Any) -> Any:
    """Returns a sample as it comes out of a batched step: lists are tuples then."""
    return {**one, "inner": {**one["inner"], "pair": (one["inner"]["pair"][0], tuple(one["inner"]["pair"][1]))}}
