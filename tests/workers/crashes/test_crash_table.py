"""Every crash of the table ends as the table says, and nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from headrace.testing.belongings import Belongings
from tests.workers.crashes.cells import FURTHER, TABLE, Outcome, cells
from tests.workers.crashes.program import FAULTS, Backend, Cell, Kind, Place, Way
from tests.workers.crashes.running import Running

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc"),
    pytest.mark.alone,  # other tests leave things in /dev/shm for a while
]

OUTCOMES: dict[Cell, Outcome] = dict(cells())

AT_ONCE: dict[Backend, int] = {"inline": 8, "thread": 8, "fork": 6, "spawn": 2}
"""Crashes that run at the same time. Those that start a Python are work."""

HANGING_AT_ONCE = 100
"""Crashes that hang only wait, unless they start a Python."""

NORMAL_WAYS: list[tuple[Backend, Way]] = [
    ("fork", "always"),
    ("inline", "always"),
    ("fork", "once"),
    ("fork", "replace"),
    ("fork", "skip"),
    ("inline", "replace"),
]
"""What the normal tests run; the other ways, and threads, are marked `stress`."""

SOME_SPAWNED = [
    Cell("constructor", "raise", "spawn"),
    Cell("constructor", "SIGKILL", "spawn"),
    Cell("__getitem__", "segfault", "spawn"),
    Cell("worker_init_fn", "exit", "spawn", "once"),
    Cell("user's loop", "SIGKILL", "spawn"),
    Cell("shutdown", "exit", "spawn"),
]
"""The others with `spawn` are marked `stress`: workers are forks of the helper there, and most is as with `fork`."""

QUICK_WAY: tuple[Backend, Way] = ("fork", "always")
QUICK_FAULTS: tuple[Kind, ...] = ("raise", "SIGKILL")
"""These of that way are quick; the others are marked `thorough`, such as workers that hang, which take seconds."""


def marks_of(cell: Cell) -> list[pytest.MarkDecorator]:
    """Returns the mark that leaves a cell out of quicker runs, or keeps it in them."""
    if cell in SOME_SPAWNED:
        return [pytest.mark.thorough]
    if (cell.backend, cell.way) not in NORMAL_WAYS:
        return [pytest.mark.stress]

    if (cell.backend, cell.way) == QUICK_WAY and cell.fault in QUICK_FAULTS:
        return [pytest.mark.quick]
    return [pytest.mark.thorough]


def group_of(cell: Cell) -> tuple[Backend, Way, bool]:
    """Returns what the cells have in common that may run at the same time."""
    return cell.backend, cell.way, cell.fault == "hang"


def name_of(cell: Cell) -> str:
    return f"{cell.backend}-{cell.way}-{cell.place}-{cell.fault}"


CELLS = sorted(OUTCOMES, key=group_of)


def run_at_once(chosen: Sequence[Cell], folder: Path) -> dict[Cell, list[str]]:
    """Runs crashes at the same time, and returns for each a line for all that is otherwise than the table says."""
    before = Belongings.now()
    running = {}
    for cell in chosen:
        room = folder / str(cell)
        room.mkdir()
        running[cell] = Running(cell, room)
    found = {cell: OUTCOMES[cell].differences(cell, started.ending()) for cell, started in running.items()}
    for path in Belongings.now().beyond(before).shared:
        for lines in found.values():
            lines.append(f"left behind, by this crash or one that ran beside it: {path}")
    return found


@pytest.fixture(scope="module")
def differences(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Cell], list[str]]:
    """Tells what is otherwise than the table says. A crash runs together with those of its group that come next."""
    items: list[Any] = [item for item in request.session.items if "cell" in getattr(item, "fixturenames", ())]
    selected: list[Cell] = [item.callspec.params["cell"] for item in items]
    folder = tmp_path_factory.mktemp("crashes")
    found: dict[Cell, list[str]] = {}

    def told(cell: Cell) -> list[str]:
        if cell not in found:
            next_ones = [one for one in selected if group_of(one) == group_of(cell) and one not in found]
            hangs_cheaply = cell.fault == "hang" and cell.backend != "spawn"
            at_once = HANGING_AT_ONCE if hangs_cheaply else AT_ONCE[cell.backend]
            next_ones.remove(cell)
            found.update(run_at_once([cell, *next_ones][:at_once], folder))
        return found[cell]

    return told


@pytest.mark.parametrize("cell", [pytest.param(cell, marks=marks_of(cell), id=name_of(cell)) for cell in CELLS])
def test_a_crash_ends_as_the_table_says(cell: Cell, differences: Callable[[Cell], list[str]]) -> None:
    assert differences(cell) == []


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
