"""Which cases run when.

`make test` runs the quick ones. A test without parameters is quick, and of a test with several cases the last one,
since lists begin with what is plain. Marks say it otherwise:

- `@pytest.mark.quick(name=value)`: the cases whose parameters have these values are quick;
- `@pytest.mark.quick`: all cases are;
- `@pytest.mark.thorough`: none is.

Workers that are started by `spawn` or `forkserver` import torch anew, which takes seconds. So such a case is quick only
where a mark `quick` says so.

All that are not quick get the mark `thorough`. `make test-all` runs these, too, and `make test-part` one part of them:
`--part 2/3` is the second of three parts, which together hold each case once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import pytest

SLOW_STARTS = ("spawn", "forkserver")

QUICK_EXAMPLES = 25
"""How many examples Hypothesis tries in `make test`, unless the test says how many; otherwise a hundred."""

NEVER_QUICK = ("thorough", "stress", "clients")
"""The marks of cases that `make test` leaves out."""


def is_quick(config: pytest.Config) -> bool:
    """Whether the marks that were asked for leave thorough tests out, as `make test` does."""
    return "not thorough" in config.option.markexpr


def mark_thorough(items: list[pytest.Item]) -> None:
    """Adds the mark `thorough` to the cases that `make test` leaves out."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[name_of_test(item)].append(item)

    for cases in tests.values():
        quick = quick_cases(cases)
        for item in cases:
            if item not in quick:
                item.add_marker(pytest.mark.thorough)


def quick_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Returns those of a test's cases that are quick.

    Raises `UsageError` if several cases of a test are there, and the values in its mark `quick` fit none of them.
    """
    possible = [item for item in cases if not any(item.get_closest_marker(mark) for mark in NEVER_QUICK)]
    named = [item for item in possible if item.get_closest_marker("quick")]
    if not named:
        return [item for item in possible if not starts_slowly(list(parameters_of(item).values()))][-1:]

    quick = [item for item in named if is_named(item)]
    if len(named) > 1 and not quick:
        raise pytest.UsageError(f"{name_of_test(cases[0])}: no case has the parameters that its mark quick names")
    return quick


def parse_part(text: str) -> tuple[int, int]:
    """Returns the numbers in a text such as `2/3`. Raises `UsageError` if it is no such text."""
    part, _, parts = text.partition("/")
    if part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise pytest.UsageError(f"--part {text}: expected for example 2/3, the second of three parts")


def is_of_part(item: pytest.Item, part: int, parts: int) -> bool:
    """Whether a case is quick, or belongs to one of the parts of the thorough ones. The name alone decides which."""
    return item.get_closest_marker("thorough") is None or crc32(item.nodeid.encode()) % parts == part - 1


def name_of_test(item: pytest.Item) -> str:
    """Returns the file, class and function of a case: its name without the parameters."""
    return item.nodeid.partition("[")[0]


def is_named(item: pytest.Item) -> bool:
    """Whether a case has the values that its marks `quick` name. Raises `UsageError` if it has no such parameters."""
    parameters = parameters_of(item)
    marks = list(item.iter_markers("quick"))
    for mark in marks:
        if mark.args or not mark.kwargs.keys() <= parameters.keys():
            found = ", ".join([*map(repr, mark.args), *mark.kwargs])
            known = ", ".join(f"{name}=..." for name in parameters) or "no parameters: it has none"
            raise pytest.UsageError(
                f"{name_of_test(item)}: its mark quick names {found}; expected are names of its parameters: {known}"
            )
    return all(has_all(parameters, mark.kwargs) for mark in marks)


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
