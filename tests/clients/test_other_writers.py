"""What other tools have written is read as the form's own library reads it, or refused, or told; never else.

At the end of a run stands a table: how many values of which form and writer were compared, and what came of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.other_tools import every_tool
from tests.clients.other_tools.comparison import judged
from tests.clients.other_tools.table import ROWS, Row
from tests.clients.other_tools.tools import TOOLS, Tool

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    # Of the tools themselves.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_each_value_is_read_as_its_own_library_reads_it_or_refused_or_told(tool: Tool, tmp_path: Path) -> None:
    every_tool.skip_if_missing(tool)
    outcomes = [judged(written) for written in tool.write(tmp_path)]
    ROWS.append(Row.of(tool, outcomes))
    faults = "\n".join(str(outcome) for outcome in outcomes if outcome.result == "fault")
    assert outcomes
    assert faults == ""
