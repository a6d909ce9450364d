"""The rules by which findings are made: each looks at a case and yields what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.certainty import machine
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.formatting import seconds, size, some
from headrace.telemetry.recording import MAIN, Setting
from headrace.telemetry.simulation import Rules
from headrace.telemetry.workload import Even, Kept, Split, Without, Workload, percentile

WORTH = 1.05
"""Gain from which on a change is advised."""

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

    loop = float(np.median(case.stages["loop"]))
    if not case.prepared.seconds:
        when = "of the time"
    else:
        when = "of the time behind the first batches"

    yield Finding(
        "training-limits",
        "training",
        f"The loader keeps up: the loop waited {case.steady_share:.1%} {when}. A step of training takes "
        f"{seconds(loop)}; a faster loader would make the loop {case.ideal_gain:.2f} times as fast.",
        "Nothing in the loader. Make the step faster: larger batches, mixed precision, a compiled model.",
    )


def _first_batch(case: Case) -> Iterator[Finding]:
    """What is prepared once is no property of the batches: it is said, and left out of all other figures."""
    found = case.prepared
    if not found.seconds:
        return

    count = int(found.at.sum())
    if count == 1:
        which = "The first batch"
    else:
        which = f"Each of {count} first batches of a worker"

    if count == 1:
        took = f"took {seconds(found.seconds)}"
    else:
        took = f"took up to {seconds(found.seconds)}"

    yield Finding(
        "slow-first-batch",
        "start",
        f"{which} {took}, the others {seconds(found.usual)}: something is prepared once, such as a file that is "
        "decoded whole. All other figures and predictions are without it.",
        "Prepare it before the loader is made, keep the workers (persistent_workers=True), or pack the data (headrace "
        "pack), which then open at once.",
    )


def _start(case: Case) -> Iterator[Finding]:
    done = [one for one in case.recording.epochs if not math.isnan(one.first)]
    if not done or case.work is None or not case.setting.num_workers:
        return

    took = [one.first - one.began for one in done]
    share = sum(took) / max(case.looped, 1e-9)
    fresh = [one for one in done if one.fresh]
    if share < LONG_START or len(fresh) < 2:
        return

    gain = case.gain(Kept())
    if gain >= WORTH:
        yield Finding(
            "slow-start",
            "start",
            f"Each of {len(fresh)} epochs starts its workers anew and waits {seconds(float(np.median(took)))} "
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
    if case.setting.tuned or not case.setting.splits or count <= now or gain < WORTH:
        return  # more workers of a stream that is not split repeat it

    change: dict[str, object] = {"num_workers": count}
    if now == 0 and len(case.recording.epochs) > 1:
        change["persistent_workers"] = True

    advice = ", ".join(f"{name}={value}" for name, value in change.items())
    if case.work is not None and case.work.parts["read"] > 0.5:
        advice += ", which mostly wait, so that they need no further core"
    elif count <= case.rules.cores:
        advice += ", for which there are cores"

    yield Finding(
        "too-few-workers",
        "workers",
        f"{_workers(now)} {'make' if now > 1 else 'makes'} a batch every "
        f"{seconds(_pace(case))}, and the loop waits {case.wait_share:.0%} of the time.",
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
        if each >= handing:
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
        if gain >= WORTH:
            interval = case.interval(rules=case.rules_with(count))
        saved = case.memory_with(now - count, case.rules.prefetch)
        yield Finding(
            "too-many-workers",
            "workers",
            f"{_workers(now)} share {case.rules.cores} cores; {count} would be "
            + ("faster" if gain >= WORTH else "as fast")
            + (f" and take {size(saved)} less memory." if saved > 1e6 else "."),
            f"num_workers={count}.",
            max(gain, 1.0),
            {"num_workers": count},
            interval,
        )


def _stragglers(case: Case) -> Iterator[Finding]:
    made = _made(case)
    usual = percentile(made, 50)
    slow = made[made > 3 * usual]
    if case.rules.workers < 2 or not len(slow) or case.gain(Even()) < WORTH:
        return

    options: list[tuple[float, str, dict[str, object], Rules]] = []
    for prefetch in (4, 8, 16):
        if case.memory_with(case.rules.workers, prefetch) < case.setting.memory / 2 or not case.setting.memory:
            rules = replace(case.rules, prefetch=prefetch)
            advice = f"prefetch_factor={prefetch}: more batches ahead."
            options.append((case.gain(rules=rules), advice, {"prefetch_factor": prefetch}, rules))

    if not case.rules.free and not case.setting.is_stream:
        rules = replace(case.rules, free=True)
        advice = "seed=0: then batches go to whichever worker is free, in the same order."
        options.append((case.gain(rules=rules), advice, {"seed": 0}, rules))

    if case.rules.in_order:
        rules = replace(case.rules, in_order=False)
        advice = "in_order=False: batches come as they are ready."
        options.append((case.gain(rules=rules), advice, {"in_order": False}, rules))

    best = max(gain for gain, _, _, _ in options)
    gain, advice, change, rules = next(one for one in options if one[0] >= 0.97 * best)
    if gain >= WORTH:
        yield Finding(
            "stragglers",
            "stragglers",
            f"A batch usually takes {seconds(usual)}; {len(slow)} of {len(made)} take up to "
            f"{seconds(float(slow.max()))}, and the others wait behind them. With even batches the loop would be "
            f"{case.gain(Even()):.2f} times as fast.",
            advice,
            gain,
            change,
            case.interval(rules=rules),
        )


def _batches(case: Case) -> Iterator[Finding]:
    if case.work:
        known = [len(work) for work in case.work.epochs]
    else:
        known = [0]

    length = case.setting.length or int(np.median(known))
    samples = case.setting.batch_size
    if not samples or samples < 8 or not length or length > 4 * max(case.rules.workers, 1):
        return

    gain = case.gain(Split(4))
    if gain >= WORTH:
        yield Finding(
            "huge-batches",
            "batches",
            f"An epoch has {some(length, 'batch', 'batches')} of {samples} samples ({size(case.batch_bytes)} each, "
            f"made in {seconds(percentile(_made(case), 50))}): training waits for the first, workers for the last.",
            f"batch_size={samples // 4}, with gradient accumulation over 4 steps if training needs the large batch.",
            gain,
            {"batch_size": samples // 4},
            case.interval(Split(4)),
        )


CURES = {
    "read": "Pack the files into one container (headrace pack), or keep a local copy; more workers also hide waiting.",
    "decode": "Decode once: pack at the size that training needs (headrace pack --resize), or cache behind decoding "
    "(headrace.Staged(...).cache()). headrace doctor --plan measures the cut.",
    "transform": "Cache what is not random (headrace.Staged(...).cache()), work on whole batches (headrace.step with "
    "batched steps, __getitems__), or move it to the device.",
    "load": "Load whole batches at once (__getitems__), or compute what is not random once "
    "(headrace.Staged(...).cache()).",
    "collate": "Return arrays or tensors of one shape instead of nested Python objects, or whole batches "
    "(__getitems__), which need no collation.",
    "send": "Return tensors or arrays rather than Python objects; smaller dtypes (uint8 images, normalised on the "
    "device) make batches smaller.",
}

CURES_FOR_BATCHES = {
    "load": "Read only the columns that training needs, or compute what is not random once "
    "(headrace.Staged(...).cache()).",
}
"""Where a dataset has the samples of a batch at once already."""

CURES_FOR_STREAMS = {
    "load": "Read and compute many samples at once in __iter__, as arrays, and yield them one by one; or split the "
    "stream over workers (headrace.shard on its files).",
    "transform": "Compute on many samples at once in __iter__, as arrays; split the stream over workers "
    "(headrace.shard on its files); or move the transform to the device.",
    "collate": "Return arrays or tensors of one shape instead of nested Python objects, or yield whole batches "
    "(batch_size=None), which need no collation.",
}
"""Where a dataset is iterable: it has no keys by which to fetch batches or to cache."""

CURES_FOR_OWN_COLLATION = {
    "collate": "Let default collation do it, which writes straight into the batch; pad with headrace.Ragged or in "
    "NumPy instead of a Python loop.",
}
"""Where the user gave a `collate_fn`."""


def cure_for(part: str, setting: Setting) -> str:
    """Returns what to do about a slow part of making a batch."""
    cures = CURES | (CURES_FOR_BATCHES if setting.makes_batches or setting.loads_together else {})
    if setting.is_stream:
        cures = CURES | CURES_FOR_STREAMS
    return (cures | (CURES_FOR_OWN_COLLATION if setting.own_collate else {}))[part]


def _stages(case: Case) -> Iterator[Finding]:
    if case.work is None or case.keeps_up:
        return

    for part, change in stage_changes(case.work).items():
        gain = case.gain(change)
        if gain < WORTH or case.work.parts[part] < 0.1:
            continue
        where = next((place.where for place in case.recording.places if place.kind == part and place.where), "")
        yield Finding(
            f"slow-{part}",
            part,
            f"{MADE_OF[part].capitalize()} is {case.work.parts[part]:.0%} of making a batch"
            + (f", most of it in {where}." if where else "."),
            cure_for(part, case.setting),
            gain,
            interval=case.interval(change),
        )


def stage_changes(work: Workload) -> dict[str, Without]:
    """Returns for each part of making a batch what is gone if it costs nothing."""
    changes = {}
    cpu_parts = {part: share for part, share in work.parts.items() if part not in ("read", "send")}
    cpu_whole = max(sum(cpu_parts.values()), 1e-12)
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
    if gain >= WORTH and pinned + opened > 0:
        pins = pinned > opened
        yield Finding(
            "slow-delivery",
            "delivery",
            f"The main process takes {seconds(pinned + opened)} to {'pin' if pins else 'unpack'} each batch, while "
            "training waits.",
            "Return fewer, larger tensors instead of Python objects."
            if not pins
            else "Smaller batches in bytes: uint8, normalised on the device.",
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
            "backend='thread', if the dataset stands several threads at once: see docs/workers.md.",
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
        half = len(memory) // 2
        before, after = (float(np.median(memory["workers"][part])) for part in (slice(1, half), slice(half, None)))
        if after > 1.15 * before and after - before > 64 << 20:
            yield Finding(
                "memory-grows",
                "memory",
                f"The workers' memory grows: {size(before)} in the first half, {size(after)} in the second.",
                "Reading Python objects copies their pages into each worker: headrace.compact(list) holds the same in "
                "a few arrays. Or something keeps what it has loaded.",
            )


def _made(case: Case) -> np.ndarray:
    stages = case.stages
    made: np.ndarray = stages["load"] + stages["collate"] + stages["send"]
    return made


def _pace(case: Case) -> float:
    """Seconds from one batch to the next, as the workers make them."""
    here = case.rows["worker"] == MAIN
    if not here.all():
        return float(np.mean(_made(case))) / max(case.rules.workers, 1)
    return float(np.mean(_made(case)))


def _workers(count: int) -> str:
    return {0: "The main process itself", 1: "One worker"}.get(count, f"{count} workers")


RULES: tuple[Rule, ...] = (
    machine, _training, _first_batch, _start, _too_few, _too_many, _stragglers, _batches, _stages, _delivery, _threads,
    _memory,
)  # fmt: skip
"""All of them."""
