"""How a loader is set up, and what happened to it, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.observe.diagnosis.finding import Diagnosis
from headrace.observe.page.timeline import MOST_EVENTS, began
from headrace.observe.page.wording import text
from headrace.telemetry.formatting import UNKNOWN, count, seconds, size, some
from headrace.telemetry.recording import EpochTimes, Event, Recording, Setting

MOST_ROWS = 100
"""Rows of the tables of events and epochs: the latest ones."""


def pairs(given: Mapping[str, str]) -> str:
    """Returns a small table of names and values."""
    rows = ""
    for name, value in given.items():
        rows += f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>'

    if rows:
        return f'<table class="pairs"><tbody>{rows}</tbody></table>'
    return ""


def details(recording: Recording, diagnosis: Diagnosis | None) -> str:
    """Returns what is known of a loader besides its figures: traps, how it is set up, its epochs and its events."""
    named = set()
    if diagnosis:
        named = {finding.name for finding in diagnosis.findings}

    # A trap that is a finding stands above already.
    traps = ""
    for trap in recording.setting.traps:
        if trap.name not in named:
            traps += f"<li><b>{text(trap.name)}</b>: {text(trap.text)}</li>"

    known = ""
    if traps:
        known = f'<h3>Known to go wrong</h3><ul class="traps">{traps}</ul>'

    setting = f"<div><h3>How the loader is set up</h3>{pairs(_setting(recording))}</div>"
    beside = _epochs(recording.epochs) + _events(recording.events, began(recording))
    return f'{known}<div class="two">{setting}<div>{beside}</div></div>'


def _epochs(epochs: Sequence[EpochTimes]) -> str:
    if not epochs:
        return ""

    rows = ""
    for epoch in epochs[-MOST_ROWS:]:
        workers = f"{epoch.workers}"
        if epoch.workers and not epoch.fresh:
            workers = f"{workers} kept"

        rows += (
            f'<tr><th scope="row">{epoch.epoch}</th><td>{count(epoch.batches)}</td>'
            f"<td>{seconds(epoch.first - epoch.began)}</td><td>{seconds(epoch.ended - epoch.began)}</td>"
            f"<td>{workers}</td></tr>"
        )

    head = ""
    for name in ("epoch", "batches", "to the first", "in all", "workers"):
        head += f'<th scope="col">{name}</th>'

    note = _latest(len(epochs), MOST_ROWS)
    return (
        f'<h3>Epochs</h3>{note}<table class="figures-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _events(events: Sequence[Event], zero: float) -> str:
    if not events:
        return ""

    rows = ""
    for event in events[-MOST_ROWS:]:
        rows += (
            f'<tr><td>{seconds(event.time - zero)}</td><th scope="row">{text(event.kind)}</th>'
            f"<td>{text(event.text)}</td></tr>"
        )

    head = '<thead><tr><th scope="col">after</th><th scope="col">what</th><th scope="col">particulars</th></tr></thead>'
    note = _latest(len(events), MOST_ROWS, MOST_EVENTS)
    return f'<h3>Events</h3>{note}<table class="events">{head}<tbody>{rows}</tbody></table>'


def _latest(held: int, shown: int, on_timeline: int | None = None) -> str:
    if held <= shown:
        return ""

    more = ""
    if on_timeline:
        more = f", {count(min(held, on_timeline))} of them on the timeline"

    return f'<p class="quiet">The latest {count(shown)} of {count(held)}{more}.</p>'


def _setting(recording: Recording) -> dict[str, str]:
    """Returns what is worth showing of a setting, in words."""
    setting = recording.setting
    loaders = {"headrace": "headrace", "torch": "torch.utils.data.DataLoader"}
    dataset = setting.dataset or UNKNOWN
    if setting.is_stream:
        dataset = f"{dataset}, a stream"

    rows = {
        "loader": loaders[setting.loader],
        "dataset": dataset,
        "workers": _workers(setting),
        "batch size": _count(setting.batch_size),
        "batches of an epoch": _count(setting.length),
        "order": _either(setting.in_order, "as the sampler says", "as they become ready"),
    }
    if recording.hosts:
        rows["on other machines"] = _machines(recording)
    if setting.num_workers:
        rows["prefetch_factor"] = count(setting.prefetch_factor)
        rows["work goes to"] = _either(setting.free, "whichever worker is free", "the workers in turn")
        rows["workers are"] = _either(setting.persistent_workers, "kept between epochs", "started for each epoch")

    collating = _either(setting.own_collate, "a collate_fn of your own", "torch's rules")
    rows["batches made by"] = _either(setting.makes_batches, "the dataset, whole", collating)
    rows["pinned memory"] = _either(setting.pin_memory or bool(setting.device), "yes", "no")
    if setting.device:
        rows["device"] = setting.device
    rows["accelerator"] = setting.accelerator or "none"
    rows["cores"] = count(setting.cores)
    if setting.memory:
        rows["memory allowed"] = size(setting.memory)
    return rows


def _workers(setting: Setting) -> str:
    if not setting.num_workers:
        return "none: the main process loads"

    if setting.remote_cores:
        return f"{some(setting.num_workers, 'process', 'processes')}, placed by Ray"
    if setting.fork_server:
        return f"{some(setting.num_workers, 'process', 'processes')}, {setting.start_method} by a fork server"
    if setting.backend == "process":
        return f"{some(setting.num_workers, 'process', 'processes')}, {setting.start_method}"
    if setting.backend == "thread":
        return some(setting.num_workers, "thread")
    return some(setting.num_workers, "lane")


def _machines(recording: Recording) -> str:
    """Returns how many workers each other machine has: "2 workers on gpu-1, 1 worker on gpu-2"."""
    each = Counter(recording.hosts.values())
    return ", ".join(f"{some(number, 'worker')} on {host}" for host, number in sorted(each.items()))


def _count(value: int | None) -> str:
    if value is None:
        return UNKNOWN
    return count(value)


def _either(condition: bool, words: str, other_words: str) -> str:
    """Returns the words if the condition holds, and the other ones if not."""
    if condition:
        return words
    return other_words
