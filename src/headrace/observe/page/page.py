"""Joins what is shown of recordings into one file of HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from string import Template

from headrace.observe.diagnosis.finding import Diagnosis
from headrace.observe.page.sections import contents, pairs, section
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
    recordings = [one if one.totals else replace(one, totals=totals_of(one.batches)) for one in recordings]
    most = budget(len(recordings))
    drawings = [timeline(recording, most) for recording in recordings]
    matched = [_diagnosis_of(place, recording, diagnoses) for place, recording in enumerate(recordings)]
    sections = [
        section(place, recording, diagnosis, drawing, is_one_of_several=len(recordings) > 1)
        for place, (recording, diagnosis, drawing) in enumerate(zip(recordings, matched, drawings, strict=True))
    ]
    script = "".join(['(() => {\n"use strict";\n', *map(_file, SCRIPTS), "})();"])
    return Template(_file("page.html")).substitute(
        title=text(title),
        subtitle=_subtitle(seconds, len(recordings)),
        contents=contents(recordings, matched),
        sections="\n".join(sections) or '<p class="none">No loader was used.</p>',
        command=_next(command),
        machine=pairs(machine),
        style=_file("page.css"),
        script=script,
        script_hash=_hash(script),
        data=as_script(drawings),
    )


def _diagnosis_of(place: int, recording: Recording, diagnoses: Sequence[Diagnosis]) -> Diagnosis | None:
    if place < len(diagnoses) and diagnoses[place].label == recording.label:
        return diagnoses[place]
    return next((one for one in diagnoses if one.label == recording.label), None)


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


def _file(name: str) -> str:
    return files("headrace.observe.page").joinpath(name).read_text(encoding="utf-8")
