"""What the tests of other tools print at the end of a run."""

from __future__ import annotations

import pytest

from tests.clients.other_tools import table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what came of the values that other tools have written."""
    if table.ROWS:
        terminalreporter.section("values that other tools have written")
        for line in table.lines():
            terminalreporter.write_line(line)
