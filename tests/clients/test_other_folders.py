"""Folders that other tools have made are read rightly, or refused by their name and with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.other_tools import every_tool, kept_folders
from tests.clients.other_tools.comparison import Outcome, Written, judged
from tests.clients.other_tools.foreign_folders import KINDS, Kind
from tests.clients.other_tools.table import ROWS, Row
from tests.clients.other_tools.tools import Tool

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    # Of the tools themselves.
    pytest.mark.filterwarnings("ignore"),
]

MODULES = (kept_folders,)
"""That enter kinds into the table when they are imported."""


def fault_of(kind: Kind, outcome: Outcome) -> str:
    """Returns what is wrong with what came of a folder; "" if nothing is."""
    if outcome.result == "equal":
        return ""
    text = without_path(outcome.written, outcome.reason)
    if outcome.result == "refused" and any(word in text for word in kind.words):
        return ""
    return f"{outcome}\n"


def without_path(written: Written, message: str) -> str:
    """Returns a message without the path, which may have the name of the kind in it."""
    return message.replace(str(written.path), "").replace(str(written.path.parent), "")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_folder_of_another_kind_is_read_rightly_or_refused_by_its_name(kind: Kind, tmp_path: Path) -> None:
    tool = Tool("other kinds", kind.name, kind.make, kind.needs)
    every_tool.skip_if_missing(tool)
    outcomes = []
    faults = ""
    for written in kind.make(tmp_path):
        outcome = judged(Written(**{**vars(written), "names": kind.words}))
        outcomes.append(outcome)
        faults += fault_of(kind, outcome)

    ROWS.append(Row.of(tool, outcomes))
    assert outcomes
    assert faults == ""
