"""The tools that have written something: each a form, a writer, and a function that writes its files."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.clients.other_tools.comparison import Written

Write = Callable[[Path], Iterator[Written]]


@dataclass(frozen=True)
class Tool:
    """A writer of a form. `write` writes below a folder, a file for each kind of value."""

    form: str
    writer: str
    write: Write
    needs: tuple[str, ...] = ()
    """Modules, and programs with a dash in front."""

    def missing(self) -> list[str]:
        """Returns what is not installed."""
        return [name for name in self.needs if not _is_there(name)]

    def __str__(self) -> str:
        return f"{self.form}-{self.writer}"


TOOLS: list[Tool] = []


def tool(form: str, writer: str, *needs: str) -> Callable[[Write], Write]:
    """Enters a function that writes files into the table."""

    def enter(write: Write) -> Write:
        TOOLS.append(Tool(form, writer, write, needs))
        return write

    return enter


def _is_there(name: str) -> bool:
    if name.startswith("-"):
        return shutil.which(name[1:]) is not None
    return importlib.util.find_spec(name) is not None
