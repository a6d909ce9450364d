"""Every crash of the table ends as the table says, and nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from headrace.testing.belongings import Belongings
from tests.workers.crashes.cells import FURTHER, TABLE, Outcome, cells
from tests.workers.crashes.program import FAULTS, Backend, Cell, Place, Way
from tests.workers.crashes.running import Running

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc"),
    pytest.mark.alone,  # other tests leave things in /dev/shm for a while
]

AT_ONCE: dict[Backend, int] = {"inline": 8, "thread": 8, "fork": 6, "spawn": 2}
"""Crashes that run at the same time, besides those that hang, which only wait. Those that start a Python are work."""

FORKED: list[tuple[Backend, Way]] = sorted({(cell.backend, cell.way) for cell, _ in cells() if cell.backend != "spawn"})
QUICK: list[tuple[Backend, Way]] = [("fork", "once"), ("fork", "replace"), ("fork", "skip"), ("inline", "replace")]
"""Of the ways besides `always`, those that the normal suite goes; the others, and threads, are marked `stress`."""

SPAWNED: list[tuple[Place, Way]] = sorted({(cell.place, cell.way) for cell, _ in cells() if cell.backend == "spawn"})

SOME_SPAWNED = [
    Cell("constructor", "raise", "spawn"),
    Cell("constructor", "SIGKILL", "spawn"),
    Cell("__getitem__", "segfault", "spawn"),
    Cell("worker_init_fn", "exit", "spawn", "once"),
    Cell("user's loop", "SIGKILL", "spawn"),
    Cell("shutdown", "exit", "spawn"),
]
"""The others with `spawn` are marked `stress`: workers are forks of the helper there, and most is as with `fork`."""


def differences(chosen: Sequence[tuple[Cell, Outcome]], folder: Path) -> list[str]:
    """Runs crashes, many at a time, and returns a line for all that is otherwise than the table says."""
    before = Belongings.now()
    slow = [one for one in chosen if one[0].fault == "hang" and one[0].backend != "spawn"]
    quick = [one for one in chosen if one not in slow]
    waiting = start(slow, folder)
    found, at_once = [], AT_ONCE[chosen[0][0].backend]
    for first in range(0, len(quick), at_once):
        found += ends(start(quick[first : first + at_once], folder))
    found += ends(waiting)
    return found + [f"left behind: {path}" for path in Belongings.now().beyond(before).shared]


def start(chosen: Sequence[tuple[Cell, Outcome]], folder: Path) -> list[tuple[Cell, Outcome, Running]]:
    started = []
    for cell, outcome in chosen:
        own = folder / str(cell)
        own.mkdir()
        started.append((cell, outcome, Running(cell, own)))
    return started


def ends(started: list[tuple[Cell, Outcome, Running]]) -> list[str]:
    return [f"{cell}: {line}" for cell, outcome, one in started for line in outcome.differences(cell, one.ending())]


def test_the_table_is_full() -> None:
    found = {(cell.place, cell.fault, cell.backend) for cell, _ in cells() if cell.way == "always"}
    assert found == {
        (place, fault, backend) for place in get_args(Place) for fault in FAULTS for backend in get_args(Backend)
    }
    assert len(found) == 10 * 6 * 4
    everything = [cell for cell, _ in cells()]
    assert (
        len(everything)
        == len(set(everything))
        == len(found) + sum(len(row) * len(backends.split()) for (_, _, backends), row in FURTHER.items())
    )
    assert list(TABLE) == list(get_args(Place))


@pytest.mark.parametrize(
    ("backend", "way"),
    [
        pytest.param(
            *one, marks=[] if (one[1] == "always" and one[0] != "thread") or one in QUICK else pytest.mark.stress
        )
        for one in FORKED
    ],
)
def test_crashes_end_as_the_table_says(backend: Backend, way: Way, tmp_path: Path) -> None:
    chosen = [(cell, outcome) for cell, outcome in cells() if (cell.backend, cell.way) == (backend, way)]
    assert differences(chosen, tmp_path) == []


@pytest.mark.stress
@pytest.mark.parametrize(("place", "way"), SPAWNED)
def test_crashes_of_spawned_workers_end_as_the_table_says(place: Place, way: Way, tmp_path: Path) -> None:
    spawned = [(cell, outcome) for cell, outcome in cells() if cell.backend == "spawn"]
    assert differences([one for one in spawned if (one[0].place, one[0].way) == (place, way)], tmp_path) == []


def test_some_crashes_of_spawned_workers_end_as_the_table_says(tmp_path: Path) -> None:
    chosen = [(cell, outcome) for cell, outcome in cells() if cell in SOME_SPAWNED]
    assert len(chosen) == len(SOME_SPAWNED)
    assert differences(chosen, tmp_path) == []
