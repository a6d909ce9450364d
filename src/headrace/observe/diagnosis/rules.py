"""The rules by which findings are made: each looks at a case and yields what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.certainty import machine
from headrace.observe.diagnosis.device import device_findings
from headrace.observe.diagnosis.finding import WORTH, Finding
from headrace.observe.diagnosis.fixes import FIX_FOR_REMOTE_READS, fix_for
from headrace.observe.diagnosis.live import live_findings, waits_for_source
from headrace.observe.diagnosis.network import line_is_full, network_findings
from headrace.observe.diagnosis.remote import remote_findings, workers_do_not_help
from headrace.observe.diagnosis.stragglers import stragglers
from headrace.telemetry.formatting import as_arguments, seconds, size, some
from headrace.telemetry.recording import MAIN, LoadingPlace
from headrace.workers.play.workload import Kept, Split, Without, Workload, percentile

LONG_START = 0.25
"""Share of an epoch that its start may take, before it is called slow."""

WAITING_WORK = 0.6
"""Share of waiting in making a batch from which on threads do as well as processes."""

MADE_OF = {
    "read": "waiting (for storage, network or locks)",
    "decode": "decoding",
    "transform": "transforming",
    "load": "loading samples",
    "collate": "collation",
    "send": "sending batches",
}


Rule = Callable[[Case], Iterator[Finding]]


def _training(case: Case) -> Iterator[Finding]:
    if not case.keeps_up:
        return

    step = f"A step of training takes {seconds(float(np.median(case.stages['loop'])))}"
    if not case.machine_is_busy:
        step = f"{step}; a faster loader would make the loop {case.ideal_gain:.2f} times as fast"

    yield Finding(
        "training-limits",
        "training",
        f"The loader keeps up: after the first batch of an epoch, the loop waited {case.steady_share:.1%} of the "
        f"time. {step}.",
        "Nothing in the loader. Make the step faster: larger batches, mixed precision, a compiled model.",
    )


def _first_batch(case: Case) -> Iterator[Finding]:
    """What is prepared once is no property of the batches: it is said, and left out of all other figures."""
    found = case.prepared
    if not found.seconds:
        return

    count = int(found.at.sum())
    if count == 1:
        took = f"The first batch took {seconds(found.seconds)}"
    else:
        took = f"Each of {count} first batches of a worker took up to {seconds(found.seconds)}"

    yield Finding(
        "slow-first-batch",
        "start",
        f"{took}, the others {seconds(found.usual)}: something is prepared once, such as a file that is "
        "decoded whole. All other figures and predictions are without it.",
        "Prepare it before the loader is made, keep the workers (persistent_workers=True), or pack the data (headrace "
        "pack), which then open at once.",
    )


def _start(case: Case) -> Iterator[Finding]:
    took = []
    fresh = 0
    for epoch in case.recording.epochs:
        # An epoch that was left before its first batch tells nothing of how long starts take.
        if not math.isnan(epoch.first):
            took.append(epoch.first - epoch.began)
            fresh += epoch.fresh

    if not took or case.work is None or not case.setting.num_workers:
        return

    share = sum(took) / max(case.looped, 1e-9)
    if share < LONG_START or fresh < 2:
        return

    gain = case.gain(Kept())
    if gain >= WORTH:
        yield Finding(
            "slow-start",
            "start",
            f"Each of {fresh} epochs starts new workers and waits {seconds(float(np.median(took)))} "
            f"for the first batch: {share:.0%} of all the time.",
            "Keep the workers between epochs: persistent_workers=True. With spawn, keep imports and what "
            "worker_init_fn does short.",
            gain,
            {"persistent_workers": True},
            case.interval(Kept()),
        )


def _too_few(case: Case) -> Iterator[Finding]:
    count, gain = case.best_workers
    now = case.rules.workers
    # Each worker of a stream that is not split has all of it: more workers would repeat its samples.
    if case.setting.tuned or not case.setting.splits or count <= now or gain < WORTH:
        return
    if workers_do_not_help(case) or waits_for_source(case) or line_is_full(case):
        return

    # Without workers an epoch starts at once. With them each epoch would start them anew, if they were not kept.
    change: dict[str, object] = {"num_workers": count}
    if now == 0 and len(case.recording.epochs) > 1:
        change["persistent_workers"] = True

    advice = as_arguments(change)
    if case.work is not None and case.work.parts["read"] > 0.5:
        advice += ", which mostly wait, so that they need no further core"
    elif case.setting.remote_cores:
        advice += ", if the cluster has room for them"
    elif count <= case.rules.cores:
        advice += ", for which there are cores"

    yield Finding(
        "too-few-workers",
        "workers",
        f"{_workers_make(now)} a batch every {seconds(_pace(case))}, and the loop waits {case.wait_share:.0%} of the "
        "time.",
        f"{advice}.",
        gain,
        change,
        case.interval(rules=case.rules_with(count)),
    )


def _too_many(case: Case) -> Iterator[Finding]:
    count, gain = case.best_workers
    now = case.rules.workers
    if case.setting.tuned or count >= now or (now < 2 and count > 0):
        return

    if count == 0:
        if gain < WORTH:
            return
        stages = case.stages
        each = float(np.mean(stages["load"] + stages["collate"]))
        handing = float(np.mean(stages["send"] + stages["open"])) + case.latency
        because = ""
        if each >= handing and not case.setting.remote_cores:
            because = f"; {some(now, 'worker')} and training share {some(case.rules.cores, 'core')}"
        yield Finding(
            "workers-cost-more",
            "transport",
            f"A batch takes {seconds(each)} to make and {seconds(handing)} to hand over from a worker{because}.",
            "num_workers=0 (or num_workers='auto', which decides while it runs).",
            gain,
            {"num_workers": 0},
            case.interval(rules=case.rules_with(0)),
        )
    elif count < now - 1 or gain >= WORTH:
        interval = None
        better = "as fast"
        if gain >= WORTH:
            interval = case.interval(rules=case.rules_with(count))
            better = "faster"

        shared = f"share {case.rules.cores} cores"
        if case.setting.remote_cores:
            shared = "are more than this loop can use"

        saved = case.memory_with(now - count, case.rules.prefetch)
        if saved > 1e6:
            better = f"{better} and take {size(saved)} less memory"

        yield Finding(
            "too-many-workers",
            "workers",
            f"{_workers(now)} {shared}; {count} would be {better}.",
            f"num_workers={count}.",
            max(gain, 1.0),
            {"num_workers": count},
            interval,
        )


def _batches(case: Case) -> Iterator[Finding]:
    lengths = [0]
    if case.work:
        lengths = list(map(len, case.work.epochs))

    length = case.setting.length or int(np.median(lengths))
    samples = case.setting.batch_size
    if not samples or samples < 8 or not length or length > 4 * max(case.rules.workers, 1):
        return

    gain = case.gain(Split(4))
    if gain >= WORTH:
        yield Finding(
            "huge-batches",
            "batches",
            f"An epoch has {some(length, 'batch', 'batches')} of {samples} samples ({size(case.batch_bytes)} each, "
            f"made in {seconds(percentile(case.made, 50))}): training waits for the first, workers for the last.",
            f"batch_size={samples // 4}, with gradient accumulation over 4 steps if training needs the large batch.",
            gain,
            {"batch_size": samples // 4},
            case.interval(Split(4)),
        )


def _stages(case: Case) -> Iterator[Finding]:
    if case.work is None or case.keeps_up:
        return

    # Why one waits for a network is said more precisely than by "waiting".
    said = {finding.stage for finding in remote_findings(case) if finding.gain is not None}
    for part, change in stage_changes(case.work).items():
        gain = case.gain(change)
        if gain < WORTH or case.work.parts[part] < 0.1 or part in said:
            continue
        sentence = f"{MADE_OF[part].capitalize()} is {case.work.parts[part]:.0%} of making a batch"
        if where := _line_of(part, case.recording.places):
            sentence = f"{sentence}, most of it in {where}"

        advice = fix_for(part, case.setting)
        if part == "read" and workers_do_not_help(case):
            advice = FIX_FOR_REMOTE_READS

        yield Finding(
            f"slow-{part}",
            part,
            f"{sentence}.",
            advice,
            gain,
            interval=case.interval(change),
        )


def _line_of(part: str, places: Iterable[LoadingPlace]) -> str:
    """Returns the line where most of a part of loading happens, the places being sorted by share; "": not known."""
    for place in places:
        if place.kind == part and place.where:
            return place.where
    return ""


def stage_changes(work: Workload) -> dict[str, Without]:
    """Returns for each part of making a batch what is gone if it costs nothing."""
    # The play knows the core seconds of a batch as one figure. Each part that takes a core has its share of them.
    cpu_whole = 0.0
    for part, share in work.parts.items():
        if part not in ("read", "send"):
            cpu_whole += share

    cpu_whole = max(cpu_whole, 1e-12)
    changes = {}
    for part, share in work.parts.items():
        if part == "read":
            changes[part] = Without(wait=1.0)
        elif part == "send":
            changes[part] = Without(send=1.0)
        else:
            changes[part] = Without(cpu=min(share / cpu_whole, 1.0))

    return changes


def _delivery(case: Case) -> Iterator[Finding]:
    if case.work is None:
        return

    gain = case.gain(Without(open=1.0))
    stages = case.stages
    pinned = float(stages["pin"].mean())
    opened = float(stages["open"].mean())
    if gain < WORTH or pinned + opened <= 0:
        return

    if pinned > opened:
        task = "send or transform" if case.setting.device else "pin"
        advice = "Smaller batches in bytes: uint8, normalised on the device."
    else:
        task = "unpack"
        advice = "Larger batches, or fewer and larger tensors in each."

    yield Finding(
        "slow-delivery",
        "delivery",
        f"The main process takes {seconds(pinned + opened)} to {task} each batch, while training waits.",
        advice,
        gain,
        interval=case.interval(Without(open=1.0)),
    )


def _threads(case: Case) -> Iterator[Finding]:
    """Work that mostly waits leaves the interpreter to others, so that threads can do it, without handing over."""
    work = case.work
    setting = case.setting
    if work is None or setting.backend != "process" or not case.rules.workers or work.parts["read"] < WAITING_WORK:
        return

    gain = case.gain(Without(send=1.0, open=1.0))
    if gain >= WORTH:
        yield Finding(
            "threads-would-do",
            "transport",
            f"Workers wait for {work.parts['read']:.0%} of their time, and handing batches over takes the loop "
            f"{1 - 1 / gain:.0%} of its time.",
            "backend='thread', if the dataset stands several threads at once: see docs/howto/workers.md.",
            gain,
            {"backend": "thread"},
            case.interval(Without(send=1.0, open=1.0)),
        )


def _memory(case: Case) -> Iterator[Finding]:
    memory = case.recording.memory
    setting = case.setting
    if not len(memory) or not setting.memory:
        return

    taken = int(memory["main"][-1] + memory["workers"][-1])
    if taken > 0.85 * setting.memory and setting.num_workers > 1:
        yield Finding(
            "workers-fill-memory",
            "memory",
            f"The script and its {some(setting.num_workers, 'worker')} take {size(taken)} of {size(setting.memory)}.",
            f"num_workers={max(setting.num_workers // 2, 1)}, or prefetch_factor=1.",
            None,
            {"num_workers": max(setting.num_workers // 2, 1)},
        )

    if len(memory) >= 8 and setting.num_workers:
        # The first look is left out: workers that have just been started have not touched their memory yet.
        half = len(memory) // 2
        before = float(np.median(memory["workers"][1:half]))
        after = float(np.median(memory["workers"][half:]))
        if after > 1.15 * before and after - before > 64 << 20:
            yield Finding(
                "memory-grows",
                "memory",
                f"The workers' memory grows: {size(before)} in the first half, {size(after)} in the second.",
                "Reading Python objects copies their pages into each worker: headrace.compact(list) holds the same in "
                "a few arrays. Or something keeps what it has loaded.",
            )


def _pace(case: Case) -> float:
    """Seconds from one batch to the next, as the workers make them."""
    here = case.rows["worker"] == MAIN
    if not here.all():
        return float(np.mean(case.made)) / max(case.rules.workers, 1)
    return float(np.mean(case.made))


def _workers(count: int) -> str:
    return {0: "The main process itself", 1: "One worker"}.get(count, f"{count} workers")


def _workers_make(count: int) -> str:
    if count > 1:
        return f"{_workers(count)} make"
    return f"{_workers(count)} makes"


RULES: tuple[Rule, ...] = (
    machine, _training, _first_batch, _start, _too_few, _too_many, stragglers, _batches, _stages, _delivery, _threads,
    _memory, remote_findings, network_findings, live_findings, device_findings,
)  # fmt: skip
"""All of them."""
