"""What other tools have written is read as the form's own library reads it, or refused, or told; never else.

At the end of a run stands a table: how many values of which form and writer were compared, and what came of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.other_tools import (
    array_files,
    arrow_files,
    csv_files,
    frame_files,
    hdf5_files,
    image_files,
    json_files,
    store_files,
    tar_files,
)
from tests.clients.other_tools.comparison import judged
from tests.clients.other_tools.table import ROWS, Row
from tests.clients.other_tools.tools import TOOLS, Tool

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    # Of the tools themselves.
    pytest.mark.filterwarnings("ignore"),
]

MODULES = (
    arrow_files,
    frame_files,
    array_files,
    csv_files,
    json_files,
    hdf5_files,
    tar_files,
    image_files,
    store_files,
)
"""Each enters its tools into the table when it is imported."""

LEAST = 500
"""Kinds of values that are compared at least, where all tools are installed."""


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_each_value_is_read_as_its_own_library_reads_it_or_refused_or_told(tool: Tool, tmp_path: Path) -> None:
    missing = tool.missing()
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: `make test-clients` installs it")

    outcomes = [judged(written) for written in tool.write(tmp_path)]
    ROWS.append(Row.of(tool, outcomes))
    faults = "\n".join(str(outcome) for outcome in outcomes if outcome.result == "fault")
    assert outcomes
    assert faults == ""
