"""What a cell of a notebook shows of one recording: a part of the page, with the styles of the page."""

from __future__ import annotations

from headrace.observe.diagnosis.finding import Diagnosis
from headrace.observe.page.page import read, with_totals
from headrace.observe.page.sections import overview, stages
from headrace.observe.page.wording import text
from headrace.telemetry.recording import Recording

AROUND = ".headrace"
"""What the styles are for: they must leave the rest of the notebook alone."""


def cell(recording: Recording, diagnosis: Diagnosis, as_text: str) -> str:
    """Returns HTML of the summary, the key figures, the findings, and bars of where the time goes.

    as_text: the report as text, which is shown on demand.
    """
    recording = with_totals(recording)
    return (
        f'<div class="headrace"><style>{_styles()}</style><section class="loader"><h2>{text(recording.label)}</h2>'
        f"{overview(recording, diagnosis)}{stages(recording)}"
        f"<details><summary>All figures</summary><pre>{text(as_text)}</pre></details></section></div>"
    )


def _styles() -> str:
    """Returns the styles of the page, nested, so that they hold in the cell alone."""
    page = read("page.css").replace(":root:not(.printing)", "&").replace(":root", "&")
    return f"{AROUND} {{\n{page}\n{read('cell.css')}}}"
