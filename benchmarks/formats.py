"""The table that `headrace bench` prints, of one dataset: each stored form, read by torch's loader and by headrace's.

    python benchmarks/formats.py [--seconds 3] [--share 1] [--json FILE]

The data are 20,000 images of 28 x 28 bytes with labels, in an .npz file at first; batches of 64, in random order and in
order. `headrace bench` writes them in every form that can hold them, compares checksums of whole epochs with those of
the source, and then measures in rounds, each form in turn. For data of one's own there is the command itself.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np

from headrace.measure.bench.loading import ORDERS, LoaderChoice, Order
from headrace.measure.bench.measuring import BenchOptions, Comparison, FormFigures, compare
from results import Row, Table, number, option, show, write

WORKERS = (0, 2)
CHECKED = "Every form delivered the same samples: checksums over whole epochs were compared."


def table_of(comparison: Comparison, order: Order) -> Table:
    """Returns the speeds of all forms in one order."""
    rows = []
    for one in comparison.figures:
        figures = {}
        for choice in comparison.choices:
            if (choice, order) in one.speeds:
                figures[name_of(choice)] = one.speeds[choice, order]

        missing = {name_of(choice): "failed" for choice in one.failures}
        rows.append(Row(name_of_form(one), figures, missing))
    words = {"random": "in random order", "sequential": "in order"}[order]
    title = f"{comparison.samples:,} images of 28 x 28, batches of {comparison.options.batch_size}, {words}"
    return Table(title, "samples/s", rows, CHECKED)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each speed, all rounds together")
    parser.add_argument("--share", type=float, default=1.0, help="of the data, to try it with less")
    option(parser)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # more workers than cores
    rng, count = np.random.default_rng(0), int(20_000 * given.share)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(path, image=rng.integers(0, 255, (count, 28, 28), np.uint8), label=np.arange(count))
        comparison = compare(BenchOptions(str(path), workers=WORKERS, seconds=given.seconds))
    if not comparison.is_right:
        raise SystemExit("a form delivered other data than its source")
    tables = [table_of(comparison, order) for order in ORDERS]
    tables[0].notes += properties(comparison)
    for table in tables:
        show(table)
    write(given.json, tables, ["pyarrow", "tensordict", "h5py", "lmdb", "datasets"])


if __name__ == "__main__":
    main()
