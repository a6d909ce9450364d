"""What is done once, in front of the first batch of a worker or of an epoch: told apart from what each batch takes.

A file that is decoded whole, a model that is loaded, a connection that is opened: the first batch of a worker bears all
of it. It says nothing of the other batches, so that means, medians and predictions are made without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.telemetry.recording import Batches, stage_seconds

Floats = npt.NDArray[np.float64]

LONG = 0.25
"""Seconds that a first batch takes longer than the others, at least, before something was prepared for it."""

TIMES = 4.0
"""How many times as long as the others it takes, at least."""

LEAST = 4
"""Other batches that say how long one usually takes, at least."""

MAKING = ("load", "collate", "send")
"""The stages of making a batch."""


@dataclass(frozen=True)
class Prepared:
    """Which batches bore a preparation."""

    at: npt.NDArray[np.bool_]
    """Of the batches given: whether it did; bool [n]."""
    seconds: float
    """The longest of these batches took so long to make; 0 if there is none."""
    usual: float
    """Median seconds of making one of the others."""


def prepared(batches: Batches) -> Prepared:
    """Returns which batches were the first of their worker in an epoch, and took much longer than the others."""
    stages = stage_seconds(batches)
    made = stages["load"] + stages["collate"] + stages["send"]
    first = _firsts(batches)
    others = made[~first & ~np.isnan(batches["begun"])]
    if len(others) < LEAST:
        return Prepared(np.zeros(len(batches), bool), 0.0, 0.0)

    usual = float(np.median(others))
    late = first & (made > usual + LONG) & (made > TIMES * float(np.percentile(others, 95)))
    if late.any():
        longest = float(made[late].max())
    else:
        longest = 0.0

    return Prepared(late, longest, usual)


def first_step(batches: Batches) -> int | None:
    """Returns where the loader's first batch is, if training took much longer for it than for the others.

    A model that is compiled or an accelerator that is set up makes the first step long. None: it was like the others,
    or is not held any more.
    """
    if not len(batches) or batches["epoch"][0] != 0 or batches["number"][0] != 0:
        return None

    loop = stage_seconds(batches)["loop"]
    others = loop[1:][batches["epoch"][1:] == 0][:-1]
    if len(others) < LEAST:
        return None

    is_long = loop[0] > np.median(others) + LONG and loop[0] > TIMES * np.percentile(others, 95)
    if is_long:
        return 0
    return None


def steady_stages(batches: Batches) -> dict[str, Floats]:
    """Returns what `stage_seconds` does, as if nothing had been prepared: such batches take what is usual."""
    stages = stage_seconds(batches)
    step = first_step(batches)
    if step is not None:
        stages["loop"][step] = float(np.median(stages["loop"][step + 1 :]))

    late = prepared(batches).at
    if not late.any():
        return stages

    for name in (*MAKING, "wait"):
        usual = float(np.median(stages[name][~late]))
        stages[name] = np.where(late, np.minimum(stages[name], usual), stages[name])

    return stages


def steady_batches(batches: Batches) -> Batches:
    """Returns the batches with the core seconds and the queueing that are usual where something was prepared."""
    late = prepared(batches).at
    if not late.any():
        return batches

    steady = batches.copy()
    for name in ("load_cpu", "cpu", "queued"):
        known = batches[name][~late]
        known = known[~np.isnan(known)]
        if len(known):
            steady[name][late] = np.minimum(batches[name][late], np.median(known))

    return steady


def _firsts(batches: Batches) -> npt.NDArray[np.bool_]:
    """Returns which batches are the first of their worker in their epoch, as far as the epoch's beginning is held."""
    first = np.zeros(len(batches), bool)
    if len(batches):
        # Where the beginning of an epoch is no longer held, the first batch that is held is not the worker's first.
        begun = batches["epoch"][batches["number"] == 0]
        pairs = np.stack([batches["epoch"], batches["worker"]])
        _, at = np.unique(pairs, axis=1, return_index=True)
        first[at] = np.isin(batches["epoch"][at], begun)

    return first
