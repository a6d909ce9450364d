"""The scenes of `headrace demo` that have figures: resume, spawn, stored, photos, findings."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.harness.table import OURS, Row, Table
from headrace.demo.resume import KILLED_AT, SAVED_AT

SCENES = ("resume", "spawn", "stored", "photos", "findings")
RESUMED = f"killed after step {KILLED_AT}, checkpoint at step {SAVED_AT}: the batches after it"
START = "150 MB in memory, 3 workers by spawn: the first batch"
MEMORY = "150 MB in memory, 3 workers by spawn: peak memory"


def demo(scenes: tuple[str, ...] = SCENES) -> list[Table]:
    """What `headrace demo` shows, one round: a resume, workers by spawn, stored images, decoded photos, a finding.

    The scenes compare what they deliver themselves: the samples of both loaders must be the same.
    """
    shown = {name: importlib.import_module(f"headrace.demo.{name}").SCENE.show() for name in scenes}
    tables = []
    for name, scene in shown.items():
        tables += TABLES[name](scene.facts, scene.figures)
    return tables


def resumed(facts: dict[str, Any], figures: dict[str, Any]) -> list[Table]:
    """How many batches after the checkpoint are those of the undisturbed run."""
    rows = []
    expected = facts[OURS]["steps"] - SAVED_AT
    for workers in (2, 3, 0):
        same, equal = Row(f"{workers} workers: the same samples", {}), Row(f"{workers} workers: equal to the bit", {})
        for party, found in facts.items():
            outcome = (found or {}).get(f"{workers} workers")
            if outcome is None:
                continue
            if isinstance(outcome, str):
                same.missing[party] = equal.missing[party] = outcome.partition(":")[0]
            else:
                same.figures[party], equal.figures[party] = [[float(count)] for count in outcome]
        rows += [same, equal]
    checked = f"Of {expected} batches, each was compared with the undisturbed run of the same loader."
    return [Table(RESUMED, "batches", rows, checked)]


def spawned(facts: dict[str, Any], figures: dict[str, Any]) -> list[Table]:
    """The first batch and the memory of workers by spawn."""
    assert facts["torch"] == facts[OURS]
    started = Row("", {party: [found["first_batch"]] for party, found in figures.items()})
    memory = Row("", {party: [found["peak_bytes"] / 1e9] for party, found in figures.items()})
    cpu = Row("", {party: [found["cpu_seconds"]] for party, found in figures.items()})
    checked = "The sum of all samples was compared."
    return [
        Table(START, "s", [started], checked, better="less"),
        Table(MEMORY, "GB", [memory], checked, better="less"),
        Table("150 MB in memory, 3 workers by spawn: CPU time", "s", [cpu], checked, better="less"),
    ]


def stored(facts: dict[str, Any], figures: dict[str, Any]) -> list[Table]:
    """Shuffled images of an .npz file."""
    assert len({*facts.values()}) == 1
    names = {"headrace.open": "headrace, headrace.open"}
    rates = {names.get(party, party): [found["samples_per_second"]] for party, found in figures.items()}
    title = "60,000 images of 28 x 28 in an .npz, shuffled, no workers"
    return [Table(title, "samples/s", [Row("", rates)], "The sum of all samples was compared.")]


def photos(facts: dict[str, Any], figures: dict[str, Any]) -> list[Table]:
    """Decoded JPEGs."""
    names = {"torch, Pillow": "torch", "  packed at 200 px": "headrace, TrainImages, packed at 200 px"}
    rates = {names.get(party, party): [found["samples_per_second"]] for party, found in figures.items()}
    title = "500 JPEGs of 500 x 375: decode, random crop, resize; 2 workers"
    return [Table(title, "images/s", [Row("", rates)], "Shapes and classes were compared.")]


def found(facts: dict[str, Any], figures: dict[str, Any]) -> list[Table]:
    """A gain that was predicted, and what came of it."""
    if OURS not in figures:
        raise SystemExit("the loader found something else than too few workers: measure again on a quiet machine")
    gains = {"predicted": [figures[OURS]["predicted"]], "measured": [figures[OURS]["measured"]]}
    title = "files from a slow disk, one worker: the gain of seven"
    return [Table(title, "times as fast", [Row("num_workers=7", gains)], "", base="predicted")]


TABLES = {"resume": resumed, "spawn": spawned, "stored": stored, "photos": photos, "findings": found}
