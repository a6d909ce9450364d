"""The three doors to data, `headrace.open`, `headrace.open_tokens` and `headrace.follow`: which keyword is of which."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable

HOMES = {
    "open": "headrace.data.opening",
    "open_tokens": "headrace.data.opening",
    "follow": "headrace.data.live.follow",
}


def refuse_unknown(door: str, names: Iterable[str]) -> None:
    """Raises `TypeError` for keywords that a door does not have, as Python would, and names the door that has them."""
    for name in names:
        text = f"headrace.{door}() got an unexpected keyword argument {name!r}"
        others = [other for other in HOMES if other != door and name in keywords_of(other)]
        if others:
            text += f": it is one of {' and '.join(f'headrace.{other}()' for other in others)}"
        raise TypeError(text)


def keywords_of(door: str) -> set[str]:
    """Returns the names of a door's arguments."""
    function = getattr(importlib.import_module(HOMES[door]), door)
    return set(inspect.signature(function).parameters) - {"others"}
