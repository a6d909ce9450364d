"""Weights of several sources that change on the way: rows that hold from some positions on, or rows that are asked for.

What is asked for may differ from one rank to another, and from one moment to the next: `agreed` gives all ranks the
answer of one of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from headrace.core.errors import UsageError, explain, warn, wrong_argument
from headrace.core.protocols import answers
from headrace.core.world import common_store

Unit = Literal["samples", "tokens"]
WhenExhausted = Literal["repeat", "stop", "drop"]

WINDOW = 1 << 14
"""Samples, over all ranks, after which weights are asked for again."""


FOUND = "  found:"
"""How a line of a message begins; see `explain`."""


class AskedWeights:
    """Weights that are asked for again in each window: of a function, an object, or a file."""

    place = "weights="
    """What messages call them."""

    is_function = True
    """Whether they are taken to be the same wherever they are asked for."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function = function

    def at(self, position: int, check: Callable[..., Any], *, first: bool = False) -> Any:
        """Returns the weights from a position on, as `check` returns them; None: those so far go on.

        check: takes a row and its place; raises `UsageError` for weights that do not fit. first: whether there are none
        so far.
        """
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return check(self._function(position), f"weights={name.rpartition('<locals>.')[2]}({position})")


class AskedObject(AskedWeights):
    """Weights that a method of an object tells, from what it knows."""

    is_function = False


class WeightsFile(AskedWeights):
    """Weights in a file of JSON. Once there are some, a file that cannot be used is warned of, once for each fault."""

    is_function = False

    def __init__(self, path: str) -> None:
        self.place = path
        self._fault = ""

    def at(self, position: int, check: Callable[..., Any], *, first: bool = False) -> Any:
        try:
            with open(self.place, encoding="utf-8") as file:
                weights = check(json.load(file))
        except (OSError, ValueError) as error:
            found = _found_in(error)
            expected = "JSON: a row of numbers, one for each source, or an object of names and numbers; not all zero"
            fix = "write the file under another name, and rename it"
            what = "the weights of the sources cannot be read"
            if first:
                raise UsageError.about(what, place=self.place, found=found, expected=expected, fix=fix) from error
            if found != self._fault:
                self._fault = found
                what += "; those so far go on"
                warn(explain(what, place=self.place, found=found, expected=expected, fix=fix))
            return None

        self._fault = ""
        return weights


def _found_in(error: Exception) -> str:
    """Returns what an error says was found, in a line."""
    if isinstance(error, UsageError):
        for line in str(error).splitlines():
            if line.startswith(FOUND):
                return line.removeprefix(FOUND).strip()

    return f"{type(error).__name__}: {error}"


def rows_of(weights: Any) -> list[tuple[int, Any]] | AskedWeights:
    """Returns rows of weights, each with the position that it holds from, in order; or what is asked for them.

    weights: a row, a mapping of positions to rows, a function, an object with `weights_at`, or the path of a file.
    """
    if isinstance(weights, (str, os.PathLike)):
        return WeightsFile(os.fspath(weights))
    if answers(weights, "weights_at", 1):
        return AskedObject(weights.weights_at)
    if callable(weights):
        return AskedWeights(weights)
    if not isinstance(weights, Mapping) or all(isinstance(key, str) for key in weights):
        return [(0, weights)]

    if not all(_is_count(key) for key in weights) or 0 not in weights:
        raise UsageError.about(
            "these weights do not say what holds when",
            place="weights=",
            found=f"a mapping with the keys {', '.join(map(repr, weights))}",
            expected="whole numbers from 0 up, 0 among them: positions, each with the row that holds from there on",
            fix="add the row that holds from 0 on",
        )

    return sorted(((int(key), row) for key, row in weights.items()), key=lambda pair: pair[0])


def checked_rows(weights: Any, check: Callable[..., Any]) -> tuple[list[tuple[int, Any]], AskedWeights | None]:
    """Returns rows as `check` returns them, each with the position that it holds from, and what is asked for more.

    Of weights that are asked for there is one row, that at the beginning. check: see `AskedWeights.at`.
    """
    rows = rows_of(weights)
    if isinstance(rows, AskedWeights):
        return [(0, rows.at(0, check, first=True))], rows
    return [(since, check(row)) for since, row in rows], None


def _is_count(key: object) -> bool:
    return isinstance(key, (int, np.integer)) and not isinstance(key, bool) and int(key) >= 0


def in_order(row: Any, names: Sequence[str] | None, what: str = "weights", *, place: str | None = None) -> Any:
    """Returns what a row has for each source, in their order. Raises `UsageError` if it has other names than these.

    what: the argument's name. place: where the row comes from; None: from that argument.
    """
    if not isinstance(row, Mapping):
        return row

    if names is None or set(row) != set(names):
        if names is None:
            expected = "a row without names: the sources have none"
        else:
            expected = f"one for each of {', '.join(names)}"

        raise UsageError.about(
            f"these {what} do not fit",
            place=place or f"{what}=",
            found=f"{what} for {', '.join(map(str, row))}",
            expected=expected,
            fix=f"give {what} for all sources, under the same names",
        )

    return [row[name] for name in names]


def sources_of(sources: Any, what: str = "sources") -> tuple[list[Any], list[str] | None]:
    """Returns the sources in their order, and their names if they are given by names. what: the argument's name."""
    if not isinstance(sources, Mapping):
        return list(sources), None

    wrong = [name for name in sources if not isinstance(name, str)]
    if wrong:
        raise wrong_argument(what, wrong[0], "names that are text", found=f"the name {wrong[0]!r}")
    return list(sources.values()), list(sources)


def agreed(asked: AskedWeights, what: str, ask: Callable[[], Any]) -> Any:
    """Returns what one of several ranks was answered: the one that came first. what: is asked for, on all ranks.

    No rank waits for another one: they may come here at any time, and each any number of times. What `ask` returns is
    turned into JSON. Without a process group, each rank asks for itself; raises `UsageError` if it may get another
    answer than the others.
    """
    store = common_store()
    if store is not None:
        key = f"weights/{what}"
        if store.check([key]):
            return json.loads(store.get(key))
        return json.loads(store.compare_set(key, "", json.dumps(ask())))

    if asked.is_function:
        return ask()
    raise UsageError.about(
        "the ranks may get different weights, and would not know",
        place=asked.place,
        found="several ranks, and no process group of torch.distributed",
        expected="a process group, through which the ranks get the same weights",
        fix="call torch.distributed.init_process_group, or give the weights as numbers, a mapping or a function",
    )
