"""What a scene is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Line:
    """What is said of one loader."""

    party: str
    words: str


@dataclass
class SceneResult:
    """What a scene found out.

    facts: by party, what is the same on a quiet and on a busy machine. figures: what was measured, such as seconds.
    """

    lines: list[Line] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, party: str, words: str, *, facts: Any = None, figures: Mapping[str, Any] | None = None) -> None:
        """Adds what was found out about a party."""
        self.lines.append(Line(party, words))
        self.facts[party] = facts
        if figures is not None:
            self.figures[party] = dict(figures)


@dataclass(frozen=True)
class Scene:
    """A part of the demo. show: runs it; it may take seconds, and raises no error of a loader that it shows."""

    name: str
    title: str
    show: Callable[[], SceneResult]
