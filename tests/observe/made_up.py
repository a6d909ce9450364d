"""Recordings as a loader would leave them, made up with a seed: no process was started for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.telemetry.recording import (
    BATCH,
    MAIN,
    MEMORY,
    EpochTimes,
    Event,
    LoadingPlace,
    Recording,
    Setting,
    Trap,
    totals_of,
)

BEGAN = 5000.0
"""When the first epoch of every made-up recording begins, in seconds of `time.perf_counter()`."""
MACHINE = {
    "processor": "8 cores, x86_64",
    "memory": "32.0 GB",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "system": "Linux 6.1",
}
TIMES = ("posted", "begun", "loaded", "collated", "sent", "arrived", "asked", "delivered")
MEASURED = ("load_cpu", "cpu", "queued", "opened", "pinned", "loop_cpu")
SHARES = ((0.9, "load_cpu"), (0.95, "cpu"), (0.03, "queued"))


@dataclass(frozen=True)
class Pace:
    """How fast things are, in seconds; all that varies does so around these."""

    load: float = 0.070
    collate: float = 0.006
    send: float = 0.002
    loop: float = 0.021
    open: float = 0.0006
    pin: float = 0.0009
    start: float = 0.4
    stall: float = 0.9
    """How much longer a batch in eighty takes to load."""


def with_workers(
    batches: int = 300, workers: int = 2, *, epochs: int = 2, seed: int = 0, pace: Pace | None = None, label: str = ""
) -> Recording:
    """Returns what two workers (or more) leave: they begin late, stall now and then, and their memory grows."""
    pace, rng = pace or Pace(), np.random.default_rng(seed)
    rows = np.zeros(batches, BATCH)
    kept: list[EpochTimes] = []
    each, now, done = max(1, -(-batches // max(1, epochs))), BEGAN, 0
    for epoch in range(epochs):
        size = min(each, batches - done)
        if size <= 0:
            break
        part = rows[done : done + size]
        _fill_epoch(part, now, workers, pace, rng)
        part["epoch"], part["number"] = epoch, np.arange(size)
        ended = float(part["delivered"][-1]) + pace.loop
        kept.append(EpochTimes(epoch, now, float(part["delivered"][0]), ended, size, workers, fresh=True))
        now, done = ended + 0.15, done + size
    rows["samples"], rows["bytes"] = 32, 32 * 3 * 224 * 224
    return Recording(
        label=label or "train.py:41",
        setting=Setting(
            backend="process",
            num_workers=workers,
            batch_size=32,
            length=each,
            cores=8,
            memory=32 * 10**9,
            dataset="ImageFolder",
            accelerator="cuda",
            pin_memory=True,
        ),
        batches=rows,
        epochs=tuple(kept),
        memory=_memory(rows, workers, rng),
        events=_events(rows, workers),
        places=PLACES,
        totals=totals_of(rows),
        first_seen=BEGAN,
        bad_samples=3,
        restarts=1,
    )


def _fill_epoch(
    rows: npt.NDArray[np.void], began: float, workers: int, pace: Pace, rng: np.random.Generator, ahead: int = 2
) -> None:
    count = len(rows)
    load = rng.lognormal(np.log(pace.load), 0.22, count)
    load[rng.random(count) < 1 / 80] += pace.stall * (0.5 + rng.random())
    collate, send = (rng.lognormal(np.log(mean), 0.2, count) for mean in (pace.collate, pace.send))
    loop, opened, pinned = (rng.lognormal(np.log(mean), 0.15, count) for mean in (pace.loop, pace.open, pace.pin))
    free = [began + pace.start + 0.05 * worker for worker in range(workers)]
    times = np.zeros((count, len(TIMES)))
    asked = began + 0.06
    for i in range(count):
        worker = i % workers
        posted = began if i < workers * ahead else times[i - workers * ahead, 7]
        begun = max(posted + 0.0002, free[worker])
        sent = free[worker] = begun + load[i] + collate[i] + send[i]
        arrived = max(sent + 0.0003, asked)
        delivered = arrived + opened[i] + pinned[i]
        times[i] = posted, begun, begun + load[i], sent - send[i], sent, arrived, asked, delivered
        asked = delivered + loop[i]
    for column, name in enumerate(TIMES):
        rows[name] = times[:, column]
    rows["worker"] = np.arange(count) % workers
    for share, name in SHARES:
        rows[name] = load * share
    rows["opened"], rows["pinned"], rows["loop_cpu"] = opened, pinned, loop * 0.8


def _memory(rows: npt.NDArray[np.void], workers: int, rng: np.random.Generator) -> npt.NDArray[np.void]:
    if not len(rows):
        return np.zeros(0, MEMORY)
    times = np.arange(BEGAN, float(rows["delivered"][-1]), max(0.5, (rows["delivered"][-1] - BEGAN) / 4000))
    memory = np.zeros(len(times), MEMORY)
    progress = (times - BEGAN) / max(1.0, times[-1] - BEGAN)
    memory["time"] = times
    memory["main"] = 4.1e8 + 6e7 * progress + rng.normal(0, 4e6, len(times))
    memory["workers"] = workers * (2.4e8 + 3.1e8 * progress) + rng.normal(0, 9e6, len(times))
    return memory


def _events(rows: npt.NDArray[np.void], workers: int) -> tuple[Event, ...]:
    events = [Event(BEGAN + 0.3 + 0.05 * worker, "started", f"worker {worker}", worker) for worker in range(workers)]
    if len(rows) > 20:
        middle = float(rows["sent"][len(rows) // 3])
        events.append(Event(middle, "died", "worker 1 was killed by signal 9 (SIGKILL)", min(1, workers - 1)))
        events.append(Event(middle + 0.35, "started", "a new worker 1 took its place", min(1, workers - 1)))
        events.append(Event(middle + 1.0, "decided", "two workers stay: a third one gains less than 2%"))
    return tuple(events)


PLACES = (
    LoadingPlace("decode", "PIL.Image.open(...).convert at PIL/Image.py:995", 0.52),
    LoadingPlace("transform", "RandomResizedCrop.forward at torchvision/transforms/transforms.py:963", 0.27),
    LoadingPlace("read", "read_bytes at data/folder.py:31", 0.14),
    LoadingPlace("other", "__getitem__ at data/folder.py:48", 0.07),
)


def inline(batches: int = 120, seed: int = 1) -> Recording:
    """Returns one epoch of a loader without workers: the main process loads."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(batches, BATCH)
    for name in (*TIMES, *MEASURED):
        rows[name] = np.nan
    load, collate, loop = (rng.lognormal(np.log(mean), 0.3, batches) for mean in (0.012, 0.001, 0.03))
    ends = BEGAN + np.cumsum(load + collate + loop)
    rows["asked"], rows["begun"] = ends - load - collate - loop, ends - load - collate - loop
    rows["loaded"], rows["collated"], rows["delivered"] = ends - collate - loop, ends - loop, ends - loop
    rows["worker"], rows["number"], rows["samples"], rows["bytes"] = MAIN, np.arange(batches), 16, 16 * 4096
    epochs = (EpochTimes(0, BEGAN, float(rows["delivered"][0]), float(ends[-1]), batches),) if batches else ()
    setting = Setting(batch_size=16, length=batches, cores=8, dataset="TensorDataset")
    label = "evaluate.py:12"
    return Recording(label, setting, rows, epochs, totals=totals_of(rows), first_seen=BEGAN)


def of_torch(batches: int = 200, workers: int = 2, seed: int = 2) -> Recording:
    """Returns what is known of torch's own loader: when batches were asked for and delivered."""
    whole = with_workers(batches, workers, epochs=1, seed=seed)
    rows = whole.batches.copy()
    for name in (*TIMES[:6], *MEASURED):
        rows[name] = np.nan
    rows["worker"], rows["bytes"] = MAIN, 0
    setting = Setting(loader="torch", backend="process", num_workers=workers, batch_size=32, dataset="ImageFolder")
    return Recording("torch.py:7", setting, rows, whole.epochs, totals=totals_of(rows), first_seen=BEGAN)


def empty() -> Recording:
    """Returns the recording of a loader that has delivered nothing."""
    return Recording("empty.py:1", first_seen=BEGAN)


def nothing_known(batches: int = 5) -> Recording:
    """Returns batches of which no time is known at all."""
    rows = np.zeros(batches, BATCH)
    for name in (*TIMES, *MEASURED):
        rows[name] = np.nan
    return Recording("unknown.py:3", Setting(num_workers=2, backend="thread"), rows)


def one_batch() -> Recording:
    """Returns a recording of a single batch."""
    return with_workers(1, 1, epochs=1, label="single.py:9")


def after_a_gap(hours: float = 40) -> Recording:
    """Returns two epochs with a long time in between."""
    whole = with_workers(200, 2, epochs=2, seed=5, label="resumed.py:20")
    rows = whole.batches.copy()
    for name in TIMES:
        rows[name][rows["epoch"] == 1] += hours * 3600
    first, second = whole.epochs
    late = replace(second, began=second.began + hours * 3600, first=second.first + hours * 3600, ended=float("nan"))
    return replace(whole, batches=rows, epochs=(first, late))


def awkward_label() -> str:
    """Returns a label that tries to leave its place, and is long, and in several scripts."""
    return (
        '</script><script>window.broken=1</script><img src=x onerror="window.broken=2">\'&amp; ünïcödé 数据加载器 ' * 6
    )


def diagnosis(recording: Recording, findings: int = 4) -> Diagnosis:
    """Returns a diagnosis as one would be worded of such a recording; its figures are partly made up."""
    totals = recording.totals
    spent = totals.get("wait", 0.0) + totals.get("loop", 0.0)
    share = totals.get("wait", 0.0) / spent if spent else 0.0
    gain = 1 / (1 - share) if share < 1 else 1.0
    rate = totals.get("samples", 0.0) / spent if spent else float("nan")
    summary = (
        f"The training loop waits {share:.0%} of its time for batches; decoding images limits it, and a loader that "
        f"costs nothing would make it {gain:.1f}x as fast."
    )
    return Diagnosis(recording.label, summary, share, "decode", gain, rate, FINDINGS[:findings])


FINDINGS = (
    Finding(
        "too-few-workers",
        "decode",
        "Two workers are busy all the time while 6 of 8 cores are idle, and the training loop waits.",
        "Give the loader num_workers=6.",
        1.83,
        {"num_workers": 6},
    ),
    Finding(
        "slow-decode",
        "decode",
        "Decoding takes 52% of the time of loading: images of 2400 x 1600 become crops of 224 x 224.",
        "Decode at a reduced size with headrace.transforms.decode(reduce=True), or pack them smaller with "
        "`headrace pack --resize 320`.",
        1.41,
    ),
    Finding(
        "start-each-epoch",
        "start",
        "Each epoch begins with 0.5 s in which workers are started, 2% of the time.",
        "Keep them with persistent_workers=True.",
        1.02,
        {"persistent_workers": True},
    ),
    Finding(
        "memory-grows",
        "memory",
        "The memory of the workers grew by 310 MB each in 300 batches; at this pace it is full after 4 hours.",
        "The dataset keeps Python objects that are copied as they are counted: wrap its list in headrace.compact().",
    ),
)


def with_traps(recording: Recording) -> Recording:
    """Returns it with a trap."""
    trap = Trap("global-random", "the dataset draws from numpy.random, which every worker has alike")
    return replace(recording, setting=replace(recording.setting, traps=(trap,)))
