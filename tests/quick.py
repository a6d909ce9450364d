"""Which tests belong to `make test`, the quick part of the tests, and which are marked `thorough`.

A test is thorough if it says so with `@pytest.mark.thorough`. With `@pytest.mark.thorough_but(name=value)` its cases
are thorough but for those in which the parameters have these values. Cases that start workers by `spawn` or
`forkserver` are always thorough, because such workers import torch anew, which takes seconds; `@pytest.mark.quick`
makes an exception of those that show that these start methods work. Of any other test with several cases, `make test`
runs `CASES`. Their parameters differ from test to test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import pytest

SLOW_STARTS = ("spawn", "forkserver")

CASES = 1
"""How many cases of a test are quick, unless the test says which."""

QUICK_EXAMPLES = 25
"""How many examples Hypothesis tries in `make test`, unless the test says how many; otherwise a hundred."""

CHOSEN_ALREADY = ("thorough", "thorough_but", "quick", "stress", "clients")
"""The marks of cases that are quick or left out without being counted."""


def is_quick(config: pytest.Config) -> bool:
    """Whether the marks that were asked for leave thorough tests out, as `make test` does."""
    return "not thorough" in config.option.markexpr


def mark_thorough(items: list[pytest.Item]) -> None:
    """Adds the mark `thorough` to the cases that are left out of `make test`.

    Raises `UsageError` if several cases of a test are there, and its `thorough_but` leaves none of them quick.
    """
    cases: dict[tuple[str, str], list[bool]] = {}
    for item in items:
        excepted = is_excepted(item)
        if excepted is not None:
            cases.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(excepted)
        if excepted is False or is_slow_start(item):
            item.add_marker(pytest.mark.thorough)
    for (path, name), quick in cases.items():
        if len(quick) > 1 and not any(quick):
            raise pytest.UsageError(f"{path}: {name}: no case has the parameters that thorough_but names")
    for item in beyond_the_first_cases(items):
        item.add_marker(pytest.mark.thorough)


def beyond_the_first_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns what is left of each test with many quick cases behind `CASES` of them.

    Which these are follows from their names alone: neighbours differ in one parameter only, so they are not the first
    ones of the list. Cases that have a mark of `CHOSEN_ALREADY` are passed over.
    """
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in CHOSEN_ALREADY):
            cases[item.nodeid.partition("::")[0], getattr(item, "originalname", item.name)].append(item)

    beyond = []
    for of_one_test in cases.values():
        of_one_test.sort(key=lambda item: crc32(item.nodeid.encode()))
        beyond += of_one_test[CASES:]
    return beyond


def is_excepted(item: pytest.Item) -> bool | None:
    """Whether a case is one of those that `thorough_but` leaves quick; None if the test has no such mark."""
    marks = list(item.iter_markers("thorough_but"))
    if not marks:
        return None
    return all(has_all(parameters_of(item), mark.kwargs) for mark in marks)


def is_slow_start(item: pytest.Item) -> bool:
    """Whether a case starts workers that import torch anew, and has no mark `quick`."""
    return item.get_closest_marker("quick") is None and starts_slowly(list(parameters_of(item).values()))


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    """Returns the parameters of a case, those of fixtures too."""
    found: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found


def has_all(parameters: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether all parameters have the wanted values. A list holds several values; a class goes by its name."""
    for name, values in wanted.items():
        value = parameters[name]
        allowed = values if isinstance(values, list) else [values]
        if value not in allowed and getattr(value, "__name__", value) not in allowed:
            return False
    return True


def starts_slowly(value: Any) -> bool:
    """Whether a parameter, or a part of it, is a start method whose workers import torch anew."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(starts_slowly(part) for part in value)
    return isinstance(value, str) and value in SLOW_STARTS
