"""In a notebook reports and plans are the text that they are elsewhere, and are shown with their styles."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import headrace
from headrace.loader.reporting import Report
from headrace.telemetry.terminal import Terminal
from tests.observe import made_up


class ZMQInteractiveShell:
    """What rich looks for in a notebook, by this name."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    assert Console().is_jupyter
    yield


@pytest.mark.usefixtures("notebook")
def test_a_report_is_text_in_a_notebook_too() -> None:
    loader = headrace.DataLoader(range(64), 4)
    for _ in loader:
        pass
    text = str(loader.report())
    assert "The loop waited" in text
    assert repr(loader.report()) == str(loader.report())


@pytest.mark.usefixtures("notebook")
def test_a_report_is_shown_in_a_notebook_with_its_styles_and_nothing_of_it_is_markup() -> None:
    shown = Report(made_up.with_workers(label="<script>alert(1)</script>.py:3"))._repr_html_()
    assert shown.startswith('<div class="headrace"><style>.headrace {')
    assert "The loop waited" in shown
    assert "Where the time goes" in shown
    assert "<script" not in shown and "&lt;script&gt;" in shown


@pytest.mark.usefixtures("notebook")
def test_a_plan_is_text_in_a_notebook_too() -> None:
    def slowly(values: Any) -> Any:
        time.sleep(0.001)
        return values + 1

    plan = headrace.Staged(list(np.arange(8.0))).map(slowly).plan(batch_size=4)
    assert "slowly" in str(plan)


@pytest.mark.usefixtures("notebook")
def test_what_is_printed_in_a_notebook_goes_into_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(stderr=True).print("a line")
    assert capsys.readouterr().err == "a line\n"


def test_a_report_has_no_colours_as_text_wherever_they_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in str(Report(made_up.with_workers()))
