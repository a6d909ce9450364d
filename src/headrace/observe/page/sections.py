"""What is shown of one recording, as HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.page import shares
from headrace.observe.page.charts import histogram, memory_area, stacked_bar
from headrace.observe.page.timeline import MOST_EVENTS, began
from headrace.observe.page.wording import prose, text
from headrace.observe.stats import stats_of
from headrace.telemetry.formatting import UNKNOWN, count, digits, gain_in_words, percent, seconds, size, times
from headrace.telemetry.recording import EpochTimes, Event, Place, Recording, Setting

MOST_ROWS = 100
"""Rows of the tables of events and epochs: the latest ones."""


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
    if is_one_of_several:
        number = f"{place + 1}. "
    else:
        number = ""

    parts = [
        f'<h2 id="{name}-name">{number}{text(recording.label)}</h2>',
        f'<p class="summary">{prose(diagnosis.summary)}</p>' if diagnosis and diagnosis.summary else "",
        _key_figures(recording, diagnosis),
        _findings(diagnosis, recording.setting),
        _timeline(place, recording, drawing),
        _stages(recording),
        _distributions(recording),
        _memory_and_places(recording),
        _details(recording, diagnosis),
    ]
    return f'<section id="{name}" class="loader" aria-labelledby="{name}-name">{"".join(parts)}</section>'


def pairs(given: Mapping[str, str]) -> str:
    """Returns a small table of names and values."""
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in given.items())
    if rows:
        return f'<table class="pairs"><tbody>{rows}</tbody></table>'
    return ""


def _key_figures(recording: Recording, diagnosis: Diagnosis | None) -> str:
    stats = stats_of(recording)
    is_known = stats.looped > 0
    if diagnosis:
        per_second = diagnosis.samples_per_second
    else:
        per_second = stats.samples_per_second

    figures = [
        ("samples per second", digits(per_second) if is_known else UNKNOWN),
        ("of the time waiting", percent(stats.wait_share) if is_known else UNKNOWN),
        ("as fast at best", times(diagnosis.ideal_gain) if diagnosis and is_known else UNKNOWN),
        ("batches", count(stats.batches)),
        ("to the first batch", seconds(stats.first_batch)),
        ("of data", f"{size(stats.bytes_per_second)}/s" if is_known and stats.bytes else UNKNOWN),
    ]
    figures = [(name, value) for name, value in figures if value != UNKNOWN]
    figures += [("bad samples", count(recording.bad_samples))] if recording.bad_samples else []
    figures += [("restarts of workers", count(recording.restarts))] if recording.restarts else []
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures)
    return f'<dl class="key">{cells}</dl>'


def _findings(diagnosis: Diagnosis | None, setting: Setting) -> str:
    if not diagnosis:
        return ""

    if not diagnosis.findings:
        words = "Nothing to change was found."
        if setting.loader == "torch":
            words = "torch's loader takes no times of its own: without --plain the reasons are looked for, too."
        return f'<h3>Findings</h3><p class="none">{words}</p>'

    cards = "".join(_card(finding) for finding in diagnosis.findings)
    return f'<h3>Findings</h3><div class="cards">{cards}</div>'


def _card(finding: Finding) -> str:
    gain = ""
    if finding.gain is not None and math.isfinite(finding.gain):
        gain = f'<span class="gain"><b>{gain_in_words(finding.gain, finding.interval)}</b> predicted</span>'

    if finding.advice:
        advice = f'<p class="advice">{prose(finding.advice)}</p>'
    else:
        advice = ""

    arguments = ", ".join(f"{name}={value!r}" for name, value in finding.change.items())
    if arguments:
        change = f'<p class="change"><code>DataLoader(..., {text(arguments)})</code></p>'
    else:
        change = ""

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

    buttons = "".join(
        f'<button type="button" data-do="{what}" aria-label="{label}" title="{label}">{sign}</button>'
        for what, sign, label in BUTTONS
    )
    lanes = ((stage, label) for stage, label in LANES if _is_drawn(stage, drawing))
    legend = "".join(f'<li><i class="swatch s-{stage}"></i>{label}</li>' for stage, label in lanes)
    happened = {event[1] for event in drawing["events"]}
    legend += "".join(f'<li><i class="sign">{sign}</i>{kind}</li>' for kind, sign in SIGNS.items() if kind in happened)
    notes = []
    if drawing["left_out"]:
        first, left_out = drawing["left_out"]
        notes.append(
            f"It shows {count(drawing['count'])} batches, the first {count(first)} and the latest ones; "
            f"{count(left_out)} between them are left out."
        )
    elif recording.totals.get("batches", 0) > drawing["count"]:
        notes.append(f"It shows the latest {count(drawing['count'])} of {count(recording.totals['batches'])} batches.")

    if notes:
        said = f'<p class="quiet">{" ".join(notes)}</p>'
    else:
        said = ""

    hint = (
        "Wheel or pinch to zoom, drag to move; keys: + - ← → and 0 for all of it. "
        "Where batches are too short to be told apart, colours share the height as they share the time."
    )
    return (
        f"<h3>Timeline</h3>{said}<noscript><p>The timeline needs JavaScript; all other parts do without.</p></noscript>"
        f'<div class="timeline" data-timeline="{place}" hidden><div class="tools">{buttons}'
        f'<output class="quiet" aria-live="polite"></output></div><div class="lanes">'
        f'<canvas tabindex="0" role="img" aria-label="Timeline of {text(recording.label)}. {hint}"></canvas>'
        f'<div class="tip" hidden></div></div><ul class="legend-line">{legend}</ul>'
        f'<p class="quiet hint">{hint}</p></div>'
    )


def _is_drawn(stage: str, drawing: Mapping[str, Any]) -> bool:
    """Returns whether a timeline has something of a stage."""
    columns = {"open": "opened", "pin": "pinned", "load": "loaded", "collate": "collated", "send": "sent"}
    if stage in columns:
        return any(drawing["batches"][columns[stage]] or ())
    if stage == "blank":
        return bool(drawing["workers"])
    return stage != "start" or bool(drawing["epochs"])


def _stages(recording: Recording) -> str:
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


def _memory_and_places(recording: Recording) -> str:
    memory = memory_area(recording.memory, began(recording))
    places = _places(recording.places)
    if not memory and not places:
        return ""

    if memory:
        memory = f"<div><h3>Memory over time</h3>{memory}</div>"
    else:
        memory = ""

    return f'<div class="two">{memory}{places}</div>'


def _places(places: Sequence[Place]) -> str:
    if not places:
        return ""

    rows = "".join(
        f'<tr><td>{text(place.kind)}</td><td class="where">{text(place.where)}</td><td class="amount">'
        f'<span class="bar"><span style="width:{min(1.0, max(0.0, place.share)):.1%}"></span></span>'
        f'<span class="number">{percent(place.share)}</span></td></tr>'
        for place in shares.by_line(places)
    )
    head = '<thead><tr><th scope="col">does</th><th scope="col">where</th><th scope="col">of loading</th></tr></thead>'
    table = f'<table class="places">{head}<tbody>{rows}</tbody></table>'
    return f"<div><h3>Where loading spends its time</h3>{table}</div>"


def _details(recording: Recording, diagnosis: Diagnosis | None) -> str:
    if diagnosis:
        named = {finding.name for finding in diagnosis.findings}
    else:
        named = set()

    traps = [trap for trap in recording.setting.traps if trap.name not in named]
    said = "".join(f"<li><b>{text(trap.name)}</b>: {text(trap.text)}</li>" for trap in traps)
    if said:
        known = f'<h3>Known to go wrong</h3><ul class="traps">{said}</ul>'
    else:
        known = ""

    setting = f"<div><h3>How the loader is set up</h3>{pairs(_setting(recording.setting))}</div>"
    beside = _epochs(recording.epochs) + _events(recording.events, began(recording))
    return f'{known}<div class="two">{setting}<div>{beside}</div></div>'


def _epochs(epochs: Sequence[EpochTimes]) -> str:
    if not epochs:
        return ""

    rows = "".join(
        f'<tr><th scope="row">{one.epoch}</th><td>{count(one.batches)}</td><td>{seconds(one.first - one.began)}</td>'
        f"<td>{seconds(one.ended - one.began)}</td><td>{one.workers}{'' if one.fresh or not one.workers else ' kept'}"
        "</td></tr>"
        for one in epochs[-MOST_ROWS:]
    )
    names = ("epoch", "batches", "to the first", "in all", "workers")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    note = _latest(len(epochs), MOST_ROWS)
    return (
        f'<h3>Epochs</h3>{note}<table class="figures-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _events(events: Sequence[Event], zero: float) -> str:
    if not events:
        return ""

    rows = "".join(
        f'<tr><td>{seconds(event.time - zero)}</td><th scope="row">{text(event.kind)}</th>'
        f"<td>{text(event.text)}</td></tr>"
        for event in events[-MOST_ROWS:]
    )
    head = '<thead><tr><th scope="col">after</th><th scope="col">what</th><th scope="col">particulars</th></tr></thead>'
    note = _latest(len(events), MOST_ROWS, MOST_EVENTS)
    return f'<h3>Events</h3>{note}<table class="events">{head}<tbody>{rows}</tbody></table>'


def _latest(held: int, shown: int, on_timeline: int | None = None) -> str:
    if held <= shown:
        return ""

    if on_timeline:
        more = f", {count(min(held, on_timeline))} of them on the timeline"
    else:
        more = ""

    return f'<p class="quiet">The latest {count(shown)} of {count(held)}{more}.</p>'


def _setting(setting: Setting) -> dict[str, str]:
    """Returns what is worth showing of a setting, in words."""
    rows = {
        "loader": "headrace" if setting.loader == "headrace" else "torch.utils.data.DataLoader",
        "dataset": f"{setting.dataset or UNKNOWN}{', a stream' if setting.is_stream else ''}",
        "workers": _workers(setting),
        "batch size": UNKNOWN if setting.batch_size is None else count(setting.batch_size),
        "batches of an epoch": UNKNOWN if setting.length is None else count(setting.length),
        "order": "as the sampler says" if setting.in_order else "as they become ready",
    }
    if setting.num_workers:
        rows["prefetch_factor"] = count(setting.prefetch_factor)
        if setting.free:
            rows["work goes to"] = "whichever worker is free"
        else:
            rows["work goes to"] = "the workers in turn"

        if setting.persistent_workers:
            rows["workers are"] = "kept between epochs"
        else:
            rows["workers are"] = "started for each epoch"

    if setting.makes_batches:
        rows["batches made by"] = "the dataset, whole"
    else:
        rows["batches made by"] = _collating(setting)

    rows["page-locked memory"] = _yes(setting.pin_memory)
    rows["accelerator"] = setting.accelerator or "none"
    rows["cores"] = count(setting.cores)
    if setting.memory:
        rows["memory allowed"] = size(setting.memory)
    return rows


def _workers(setting: Setting) -> str:
    if not setting.num_workers:
        return "none: the main process loads"

    kinds = {"process": "process", "thread": "thread", "inline": "lane"}
    if setting.num_workers == 1:
        more = ""
    elif setting.backend == "process":
        more = "es"
    else:
        more = "s"

    if setting.backend == "process":
        started = f", {setting.start_method}"
    else:
        started = ""

    return f"{setting.num_workers} {kinds[setting.backend]}{more}{started}"


def _collating(setting: Setting) -> str:
    if setting.own_collate:
        return "a collate_fn of your own"
    return "torch's rules"


def _yes(value: bool) -> str:
    if value:
        return "yes"
    return "no"
