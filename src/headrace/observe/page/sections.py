"""What is shown of one recording, as HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.page import shares
from headrace.observe.page.charts import histogram, memory_area, network_area, stacked_bar
from headrace.observe.page.details import details
from headrace.observe.page.timeline import began
from headrace.observe.page.wording import prose, text
from headrace.observe.remote_words import is_cached, remote_line
from headrace.observe.stats import stats_of
from headrace.telemetry.formatting import (
    UNKNOWN,
    as_arguments,
    count,
    digits,
    gain_in_words,
    percent,
    seconds,
    size,
    times,
)
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.recording import LoadingPlace, Recording, Setting
from headrace.telemetry.remote_reads import RemoteReads


def contents(recordings: Sequence[Recording], diagnoses: Sequence[Diagnosis | None]) -> str:
    """Returns the list of the recordings for the top of the page; "" if there are not several."""
    if len(recordings) < 2:
        return ""

    items = []
    for place, (recording, diagnosis) in enumerate(zip(recordings, diagnoses, strict=True)):
        share = stats_of(recording).wait_share
        if diagnosis:
            waits = f' <span class="quiet">waits {percent(share)}</span>'
        else:
            waits = ""
        items.append(f'<li>{place + 1}. <a href="#loader-{place}">{text(recording.label)}</a>{waits}</li>')

    return f'<nav aria-label="Loaders"><ol>{"".join(items)}</ol></nav>'


def section(
    place: int,
    recording: Recording,
    diagnosis: Diagnosis | None,
    drawing: Mapping[str, Any] | None,
    *,
    is_one_of_several: bool,
) -> str:
    """Returns the section of one recording; drawing: what its timeline draws, see `timeline.timeline`."""
    name = f"loader-{place}"
    number = ""
    if is_one_of_several:
        number = f"{place + 1}. "

    parts = [
        f'<h2 id="{name}-name">{number}{text(recording.label)}</h2>',
        overview(recording, diagnosis),
        _timeline(place, recording, drawing),
        stages(recording),
        _distributions(recording),
        _network(recording),
        _memory_and_places(recording),
        details(recording, diagnosis),
    ]
    return f'<section id="{name}" class="loader" aria-labelledby="{name}-name">{"".join(parts)}</section>'


def overview(recording: Recording, diagnosis: Diagnosis | None) -> str:
    """Returns what training waits for in a sentence, the key figures, and the findings."""
    summary = ""
    if diagnosis and diagnosis.summary:
        summary = f'<p class="summary">{prose(diagnosis.summary)}</p>'
    return summary + _key_figures(recording, diagnosis) + _findings(diagnosis, recording.setting)


def _key_figures(recording: Recording, diagnosis: Diagnosis | None) -> str:
    stats = stats_of(recording)
    if diagnosis:
        per_second = diagnosis.samples_per_second
    else:
        per_second = stats.samples_per_second

    # In the order in which they are shown. Rates and shares need a loop that took time.
    figures: dict[str, str] = {}
    if stats.looped > 0:
        figures["samples per second"] = digits(per_second)
        figures["of the time waiting"] = percent(stats.wait_share)
    if stats.looped > 0 and diagnosis and diagnosis.ideal_gain is not None:
        figures["as fast at best"] = times(diagnosis.ideal_gain)

    figures["batches"] = count(stats.batches)
    figures["to the first batch"] = seconds(stats.first_batch)
    if stats.looped > 0 and stats.bytes:
        figures["of data"] = f"{size(stats.bytes_per_second)}/s"
    if recording.remote is not None:
        figures |= _remote_figures(recording.remote)
    if recording.live is not None:
        figures |= _live_figures(recording.live)
    if recording.bad_samples:
        figures["bad samples"] = count(recording.bad_samples)
    if recording.restarts:
        figures["restarts of workers"] = count(recording.restarts)

    cells = ""
    for name, value in figures.items():
        if value != UNKNOWN:
            cells += f"<div><dt>{name}</dt><dd>{value}</dd></div>"

    return f'<dl class="key">{cells}</dl>'


def _remote_figures(remote: RemoteReads) -> dict[str, str]:
    """Returns what came over a network, with names."""
    figures = {"over the network": size(remote.bytes), "requests": count(remote.requests)}
    if is_cached(remote):
        figures["of the bytes from the cache"] = percent(remote.hit_rate)
    return figures


def _live_figures(live: LiveReads) -> dict[str, str]:
    """Returns what was read from a source that never ends, with names."""
    figures = {"records read": count(live.records)}
    if live.lag >= 0:
        figures["records behind"] = count(live.lag)
    return figures


def _findings(diagnosis: Diagnosis | None, setting: Setting) -> str:
    if not diagnosis:
        return ""

    if not diagnosis.findings:
        words = "Nothing to change was found."
        if setting.loader == "torch":
            words = "torch's loader takes no times of its own: without --plain the reasons are looked for, too."
        return f'<h3>Findings</h3><p class="none">{words}</p>'

    cards = "".join(map(_card, diagnosis.findings))
    return f'<h3>Findings</h3><div class="cards">{cards}</div>'


def _card(finding: Finding) -> str:
    gain = ""
    if finding.gain is not None and math.isfinite(finding.gain):
        gain = f'<span class="gain"><b>{gain_in_words(finding.gain, finding.interval)}</b> predicted</span>'

    advice = ""
    if finding.advice:
        advice = f'<p class="advice">{prose(finding.advice)}</p>'

    change = ""
    if arguments := as_arguments(finding.change):
        change = f'<p class="change"><code>DataLoader(..., {text(arguments)})</code></p>'

    top = f'<p class="tags"><span class="tag">{text(finding.stage)}</span>{gain}</p>'
    return f'<article class="card">{top}<h4>{prose(finding.sentence)}</h4>{advice}{change}</article>'


BUTTONS = (
    ("in", "+", "Zoom in"),
    ("out", "\u2212", "Zoom out"),
    ("left", "←", "Earlier"),
    ("right", "→", "Later"),
    ("all", "All", "Show all of it"),
    ("wait", "Longest wait", "Zoom to the longest wait"),
)
LANES = (
    ("train", "training"),
    ("start", "starting or preparing"),
    ("wait", "waiting"),
    ("open", "opening"),
    ("pin", "pinning"),
    ("load", "loading"),
    ("collate", "collating"),
    ("send", "sending"),
    ("blank", "idle"),
)
SIGNS = {"started": "▸", "died": "✕", "hung": "‖", "added": "+", "retired": "\u2212", "decided": "◆"}
"""What marks the kinds of events; page.js has them too."""


def _timeline(place: int, recording: Recording, drawing: Mapping[str, Any] | None) -> str:
    if drawing is None:
        return '<h3>Timeline</h3><p class="none">There is nothing to draw: no delivery was timed.</p>'

    buttons = ""
    for action, sign, label in BUTTONS:
        buttons += f'<button type="button" data-do="{action}" aria-label="{label}" title="{label}">{sign}</button>'

    hint = (
        "Wheel or pinch to zoom, drag to move; keys: + - ← → and 0 for all of it. "
        "Where batches are too short to be told apart, colours share the height as they share the time."
    )
    note = _what_is_drawn(recording, drawing)
    legend = _legend(drawing)
    # Hidden until page.js runs: without JavaScript an empty canvas and dead buttons would be left.
    return (
        f"<h3>Timeline</h3>{note}<noscript><p>The timeline needs JavaScript; all other parts do without.</p></noscript>"
        f'<div class="timeline" data-timeline="{place}" hidden><div class="tools">{buttons}'
        f'<output class="quiet" aria-live="polite"></output></div><div class="lanes">'
        f'<canvas tabindex="0" role="img" aria-label="Timeline of {text(recording.label)}. {hint}"></canvas>'
        f'<div class="tip" hidden></div></div><ul class="legend-line">{legend}</ul>'
        f'<p class="quiet hint">{hint}</p></div>'
    )


def _what_is_drawn(recording: Recording, drawing: Mapping[str, Any]) -> str:
    """Returns which batches a timeline shows; "" for all of them."""
    if drawing["left_out"]:
        first, left_out = drawing["left_out"]
        note = (
            f"It shows {count(drawing['count'])} batches, the first {count(first)} and the latest ones; "
            f"{count(left_out)} between them are left out."
        )
    elif recording.totals.get("batches", 0) > drawing["count"]:
        note = f"It shows the latest {count(drawing['count'])} of {count(recording.totals['batches'])} batches."
    else:
        return ""

    return f'<p class="quiet">{note}</p>'


def _legend(drawing: Mapping[str, Any]) -> str:
    """Returns the colours and signs that a timeline has."""
    legend = ""
    for stage, label in LANES:
        if _is_drawn(stage, drawing):
            legend += f'<li><i class="swatch s-{stage}"></i>{label}</li>'

    happened = {kind for _, kind, _, _ in drawing["events"]}
    for kind, sign in SIGNS.items():
        if kind in happened:
            legend += f'<li><i class="sign">{sign}</i>{kind}</li>'

    return legend


def _is_drawn(stage: str, drawing: Mapping[str, Any]) -> bool:
    """Returns whether a timeline has something of a stage."""
    columns = {"open": "opened", "pin": "pinned", "load": "loaded", "collate": "collated", "send": "sent"}
    if stage in columns:
        return any(drawing["batches"][columns[stage]] or ())
    if stage == "blank":
        return bool(drawing["workers"])
    return stage != "start" or bool(drawing["epochs"])


def stages(recording: Recording) -> str:
    """Returns bars of where the time of the main process and of the workers goes; "" of nothing measured."""
    main = shares.main_pieces(recording)
    workers = shares.worker_pieces(recording)
    if not main and not workers:
        return ""

    left = ""
    if main:
        waits = _inside(main, stats_of(recording).wait_share)
        left = f"<div><h4>Main process</h4>{stacked_bar(main, 'Time of the main process')}{waits}</div>"

    if workers:
        right = f"<div><h4>Workers, together</h4>{stacked_bar(workers, 'Time of the workers')}</div>"
    else:
        right = ""

    if not right and not shares.is_inline(recording):
        right = '<div><h4>Workers</h4><p class="none">What the workers do was not measured.</p></div>'
    return f'<h3>Where the time goes</h3><div class="two">{left}{right}</div>'


def _inside(pieces: Sequence[shares.Piece], waiting: float) -> str:
    """Returns what says that some of the pieces are a part of waiting, as the key figure counts it."""
    names = [piece.label for piece in pieces if piece.stage not in ("train", "wait", "first")]
    if not names:
        return ""

    if len(names) > 1:
        said = f"{', '.join(names[:-1])} and {names[-1]} happen"
    else:
        said = f"{names[0]} happens"

    return f'<p class="quiet">{said.capitalize()} while the loop waits, in all {percent(waiting)} of the time.</p>'


def _distributions(recording: Recording) -> str:
    if shares.is_inline(recording):
        who = "Making a batch"
    else:
        who = "A worker's time per batch"

    charts = histogram(shares.between_deliveries(recording.batches), "From delivery to delivery", "train")
    charts += histogram(shares.making(recording.batches), who, "load")
    if charts:
        return f'<h3>How long batches take</h3><div class="two">{charts}</div>'
    return ""


def _network(recording: Recording) -> str:
    """Returns what came over a network, and when; "" if nothing did."""
    remote = recording.remote
    if remote is None or not remote.requests:
        return ""

    chart = network_area(remote.windows, began(recording))
    return f'<h3>Over the network</h3><p class="quiet">{text(remote_line(remote))}</p>{chart}'


def _memory_and_places(recording: Recording) -> str:
    memory = memory_area(recording.memory, began(recording))
    places = _places(recording.places)
    if not memory and not places:
        return ""

    if memory:
        memory = f"<div><h3>Memory over time</h3>{memory}</div>"

    return f'<div class="two">{memory}{places}</div>'


def _places(places: Sequence[LoadingPlace]) -> str:
    if not places:
        return ""

    rows = ""
    for place in shares.by_line(places):
        # A recording that was read from a file may hold anything: a bar stays within its cell.
        width = min(1.0, max(0.0, place.share))
        rows += (
            f'<tr><td>{text(place.kind)}</td><td class="where">{text(place.where)}</td><td class="amount">'
            f'<span class="bar"><span style="width:{width:.1%}"></span></span>'
            f'<span class="number">{percent(place.share)}</span></td></tr>'
        )

    head = '<thead><tr><th scope="col">does</th><th scope="col">where</th><th scope="col">of loading</th></tr></thead>'
    table = f'<table class="places">{head}<tbody>{rows}</tbody></table>'
    return f"<div><h3>Where loading spends its time</h3>{table}</div>"
