"""What the benchmarks of stored data share: loops in turn, their medians, and data written in some form."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from headrace import open_writer
from headrace.types import Block, Field, Schema

Loop = Callable[[], Any]


def all_in_turn(loops: dict[str, Loop], amount: float, rounds: int) -> dict[str, list[float]]:
    """Returns the rates of each loop in all rounds, in `amount` per second; one unmeasured round goes before."""
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, loop in loops.items():
            begun = time.perf_counter()
            share = loop() or 1.0
            if number:
                rates[name].append(amount * share / (time.perf_counter() - begun))
    return rates


def show_rates(title: str, unit: str, measured: dict[str, list[float]], ratios: Iterable[tuple[str, str]]) -> None:
    """Prints the median rates, and the ratios of pairs of them."""
    rates = {name: statistics.median(values) for name, values in measured.items()}
    print(f"\n{title}")
    for name, rate in rates.items():
        print(f"  {name:<34} {rate:>16,.2f} {unit}" if rate < 1000 else f"  {name:<34} {rate:>16,.0f} {unit}")
    for one, other in ratios:
        print(f"  {one} / {other}: {rates[one] / rates[other]:.2f}")


def write(folder: Path, name: str, form: str, columns: dict[str, np.ndarray]) -> str:
    """Writes columns of fixed size and returns the path."""
    fields = tuple(Field(key, "fixed", value.dtype, value.shape[1:]) for key, value in columns.items())
    path = str(folder / name)
    writer = open_writer(path, Schema(fields), form)
    length = len(next(iter(columns.values())))
    for start in range(0, length, 1 << 18):
        part = {key: value[start : start + (1 << 18)] for key, value in columns.items()}
        writer.append(Block(Schema(fields), part))
    writer.seal()
    return path


def exhaust(loader: Iterable[Any]) -> None:
    """Iterates once, and holds each batch until the next one is there, as training does."""
    for _ in loader:
        pass
