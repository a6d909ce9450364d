"""Figures as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.telemetry import formatting as words

FIGURES = [
    (words.seconds, [0, 4.1e-6, 0.00041, 0.0123, 0.9997, 59.96, 11400, 190000, float("nan"), -0.5]),
    (words.size, [0, 999, 999_600, 1.58e9, float("inf")]),
    (words.percent, [0, 0.0001, 0.004, 0.41, 0.9996, float("nan")]),
    (words.times, [1.02, 1.83, 12.3, float("inf")]),
]
WORDS = [
    ["0 s", "4.10 µs", "410 µs", "12.3 ms", "1.00 s", "1 min 00 s", "3 h 10 min", "2 d 4 h", "\u2013", "-500 ms"],
    ["0 B", "999 B", "1.00 MB", "1.58 GB", "\u2013"],
    ["0%", "under 0.1%", "0.4%", "41%", "100%", "\u2013"],
    ["1.02x", "1.8x", "12x", "\u2013"],
]


@pytest.mark.parametrize(("put", "given", "expected"), [(*f, w) for f, w in zip(FIGURES, WORDS, strict=True)])
def test_figures_are_put_as_people_read_them(put: Any, given: list[float], expected: list[str]) -> None:
    assert [put(value) for value in given] == expected


def test_nouns_follow_their_numbers() -> None:
    batches = [words.some(number, "batch", "batches") for number in (0, 1, 1200)]
    assert batches == ["0 batches", "1 batch", "1,200 batches"]
    assert [words.some(number, "worker") for number in (1, 2)] == ["1 worker", "2 workers"]
