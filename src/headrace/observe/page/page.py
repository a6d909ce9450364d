"""Joins what is shown of recordings into one file of HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from string import Template

from headrace.observe.diagnosis.finding import Diagnosis
from headrace.observe.page.details import pairs
from headrace.observe.page.sections import contents, section
from headrace.observe.page.timeline import as_script, budget, timeline
from headrace.observe.page.wording import text
from headrace.telemetry.formatting import count
from headrace.telemetry.formatting import seconds as in_words
from headrace.telemetry.recording import Recording, totals_of

SCRIPTS = ("wording.js", "page.js")
"""They become one, in a function of its own."""


def page(
    title: str,
    seconds: float,
    recordings: Sequence[Recording],
    diagnoses: Sequence[Diagnosis],
    machine: Mapping[str, str],
    command: str = "",
) -> str:
    """Returns a whole file of HTML that shows the recordings, one after the other.

    seconds: how long was measured. diagnoses: those of the recordings, in the same order; where the labels differ, the
    one with the recording's label counts, and a recording may have none. machine: what to say of it, name by name.
    command: what to run next; "" where nothing follows.
    """
    recordings = list(map(with_totals, recordings))
    is_one_of_several = len(recordings) > 1
    most = budget(len(recordings))
    drawings = []
    matched = []
    sections = []
    for place, recording in enumerate(recordings):
        diagnosis = _diagnosis_of(place, recording, diagnoses)
        drawing = timeline(recording, most)
        matched.append(diagnosis)
        drawings.append(drawing)
        sections.append(section(place, recording, diagnosis, drawing, is_one_of_several=is_one_of_several))

    # The page works without a server and without a network, so scripts and styles are in it. Its policy allows the one
    # script with this hash: what a label or a sentence smuggles in does not run.
    script = "".join(['(() => {\n"use strict";\n', *map(read, SCRIPTS), "})();"])
    return Template(read("page.html")).substitute(
        title=text(title),
        subtitle=_subtitle(seconds, len(recordings)),
        contents=contents(recordings, matched),
        sections="\n".join(sections) or '<p class="none">No loader was used.</p>',
        command=_next(command),
        machine=pairs(machine),
        style=read("page.css"),
        script=script,
        script_hash=_hash(script),
        data=as_script(drawings),
    )


def with_totals(recording: Recording) -> Recording:
    """Returns a recording with sums over its batches, where whoever wrote it gave none."""
    if recording.totals:
        return recording
    return replace(recording, totals=totals_of(recording.batches))


def _diagnosis_of(place: int, recording: Recording, diagnoses: Sequence[Diagnosis]) -> Diagnosis | None:
    # The same place first: two recordings of several runs may have one label.
    for diagnosis in (*diagnoses[place : place + 1], *diagnoses):
        if diagnosis.label == recording.label:
            return diagnosis
    return None


def _subtitle(seconds: float, recordings: int) -> str:
    if recordings == 1:
        loaders = "1 loader"
    else:
        loaders = f"{count(recordings)} loaders"
    return f"{loaders}, measured for {in_words(seconds)}"


def _next(command: str) -> str:
    if not command:
        return ""
    return f'<h2>What to run next</h2><p class="next"><code>{text(command)}</code></p>'


def _hash(script: str) -> str:
    """Returns what a Content-Security-Policy calls a script, so that no other one on the page runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def read(name: str) -> str:
    """Returns the text of a file that stands beside this module."""
    return files("headrace.observe.page").joinpath(name).read_text(encoding="utf-8")
