"""The command, run in the process of the test."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from headrace.cli.app import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `headrace` with these arguments; returns its status, and what it says on stdout and stderr."""

    def running(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return running
