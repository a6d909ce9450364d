"""The table that `headrace bench` prints, of one dataset: each stored form, read by torch's loader and headrace's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.datasets import random_images
from benchmarks.harness.table import Row, Table, number
from benchmarks.harness.turns import fail
from headrace.measure.bench.comparison import BenchOptions, Comparison, FormFigures, compare
from headrace.measure.bench.loader_passes import ORDERS, LoaderChoice, Order

WORDS = {"random": "in random order", "sequential": "in order"}


def formats(seconds: float = 3.0, share: float = 1.0) -> list[Table]:
    """The table that `headrace bench` prints, of one dataset: each stored form, read by torch's loader and headrace's.

    The data are 20,000 images of 28 x 28 bytes with labels, in an .npz file at first; batches of 64, in random order
    and in order. `headrace bench` writes them in every form that can hold them, compares checksums of whole epochs with
    those of the source, and then measures in rounds, each form in turn. For data of one's own there is the command
    itself. seconds: for each speed, all rounds together. share: of the data.
    """
    images = random_images(int(20_000 * share))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(path, image=images, label=np.arange(len(images)))
        comparison = compare(BenchOptions(str(path), workers=(0, 2), seconds=seconds))
    if not comparison.is_right:
        fail("a form delivered other data than its source")
    tables = [table_of(comparison, order) for order in ORDERS]
    tables[0].notes += properties(comparison)
    return tables


def table_of(comparison: Comparison, order: Order) -> Table:
    """Returns the speeds of all forms in one order."""
    rows = []
    for one in comparison.figures:
        chosen = [choice for choice in comparison.choices if (choice, order) in one.speeds]
        figures = {name_of(choice): one.speeds[choice, order] for choice in chosen}
        rows.append(Row(name_of_form(one), figures, {name_of(choice): "failed" for choice in one.failures}))
    title = f"{comparison.samples:,} images of 28 x 28, batches of {comparison.options.batch_size}, {WORDS[order]}"
    checked = "Every format delivered the same samples: checksums over whole epochs were compared."
    return Table(title, "samples/s", rows, checked)


def name_of_form(figures: FormFigures) -> str:
    """Returns what a form is called; the one that the data are in at first is marked."""
    return f"{figures.form.format}{' (source)' if figures.form.is_source else ''}"


def name_of(choice: LoaderChoice) -> str:
    """Returns what a loader with so many workers is called."""
    return choice.loader if choice.workers == 0 else f"{choice.loader}, {choice.workers} workers"


def properties(comparison: Comparison) -> list[str]:
    """Returns a sentence for each form: what it takes on the disk, and how soon its first sample is there."""
    lines = []
    for one in comparison.figures:
        first = sorted(one.first_sample)[len(one.first_sample) // 2] * 1e3
        size = one.bytes * comparison.samples / one.length / 1e6
        lines.append(f"{name_of_form(one)}: {number(size)} MB, {one.files:,} files, first sample after {first:,.1f} ms")
    return lines + [f"{name}: left out, {why}" for name, why in comparison.left_out.items()]
