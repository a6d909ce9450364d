"""Figures that are told as they come: experiments have processes of their own, and one process keeps what they find."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness.table import number

Found = TypeVar("Found")


class Budget:
    """The seconds that an experiment may take. Its loops ask whether they are over, and end early."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds that are left; 0: none."""
        return max(self._ends - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        """Tells whether no time is left."""
        return self.left() == 0

    def share(self, parts: int) -> Budget:
        """Returns the budget of the next one of so many parts that are still to come."""
        return Budget(self.left() / parts)


def in_turn_within(parties: Mapping[str, Callable[[], Found]], rounds: int, budget: Budget) -> dict[str, list[Found]]:
    """Calls all in each round, each time another one first; at least one round, and no new one when time is over."""
    names = list(parties)
    found: dict[str, list[Found]] = {name: [] for name in names}
    for turn in range(rounds):
        if turn and budget.is_over():
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(parties[name]())
    return found


class Figures:
    """What an experiment tells. Each figure is sent at once to the process that keeps them."""

    def __init__(self, connection: Connection, experiment: int, *, simulated: bool) -> None:
        self._connection = connection
        self._experiment = experiment
        self._simulated = simulated

    def add(
        self, name: str, value: float | str, unit: str = "", *, goal: str = "", met: bool | None = None, **more: Any
    ) -> None:
        """Tells a figure. met: whether it reaches its goal; None: it has none. more: what else is kept with it.

        A simulated figure reaches no goal, and misses none.
        """
        if isinstance(value, float):
            value = float(f"{value:.6g}")
        if self._simulated:
            met = None
        self._send({"name": name, "value": value, "unit": unit, "goal": goal, "met": met, **more})

    def skip(self, name: str, why: str) -> None:
        """Tells of something that cannot be measured here."""
        self._send({"name": name, "skipped": why})

    def fail(self, name: str, trace: str) -> None:
        """Tells of an experiment that has failed, and where."""
        self._send({"name": name, "failed": trace})

    def _send(self, entry: dict[str, Any]) -> None:
        self._connection.send({"experiment": self._experiment, **entry, "simulated": self._simulated})


class Record:
    """All that was found. Prints each entry as it comes, and writes the file anew."""

    def __init__(self, out: Path | None, machine: dict[str, Any]) -> None:
        """out: the file; None: there is none."""
        self._out = out
        self._found: dict[str, Any] = {"machine": machine, "complete": False, "figures": []}
        self.failures = 0

    def take(self, entry: dict[str, Any]) -> None:
        """Keeps an entry: a figure, something that was skipped, or a failure."""
        self._found["figures"].append(entry)
        if "failed" in entry:
            self.failures += 1
        print(json.dumps(entry), flush=True)
        print(line_of(entry), flush=True)
        self._save()

    def finish(self) -> None:
        """Notes that nothing more is to come, and prints which goals were not met."""
        self._found["complete"] = True
        self._save()
        with_goal = [entry for entry in self._found["figures"] if entry.get("met") is not None]
        missed = [entry for entry in with_goal if not entry["met"]]
        if not with_goal:
            return
        print(f"{len(with_goal) - len(missed)} of {len(with_goal)} goals were met", flush=True)
        for entry in missed:
            print(line_of(entry), flush=True)

    def _save(self) -> None:
        if self._out is None:
            return
        # In one step: whoever is interrupted here keeps the file as it was.
        beside = self._out.with_name(f"{self._out.name}.new")
        beside.write_text(json.dumps(self._found, indent=1) + "\n")
        beside.replace(self._out)


def line_of(entry: dict[str, Any]) -> str:
    """Returns an entry as a line to read."""
    begin = f"{entry['experiment']:>3}  {entry['name']}"
    if "skipped" in entry:
        return f"{begin}: skipped: {entry['skipped']}"
    if "failed" in entry:
        return f"{begin}: FAILED\n{entry['failed']}"

    value = entry["value"]
    if isinstance(value, float):
        value = number(value)
    line = f"{begin}: {value} {entry['unit']}".rstrip()
    if entry["goal"]:
        line += f"  (goal: {entry['goal']})"
    if entry["met"] is not None:
        line += "  met" if entry["met"] else "  NOT MET"
    if entry["simulated"]:
        line += "  [simulated]"
    return line
