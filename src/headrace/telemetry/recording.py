"""What was measured of a loader, as plain data: one row for each batch, and what holds for all of them.

All times are seconds of `time.perf_counter()`, which on Linux all processes of a machine share (`CLOCK_MONOTONIC`);
what is NaN was not measured. A batch goes through these moments, in this order:

    posted     its keys went to a worker
    begun      the worker began with it
    loaded     its samples were there (where a dataset makes whole batches: all of it)
    collated   they were a batch
    sent       the batch was on its way to the main process
    arrived    the main process had it
    asked      the training loop asked for a batch
    delivered  it got this one

Without workers a batch is `asked` for, `begun`, `loaded`, `collated` and `delivered`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.telemetry.device_copies import DeviceCopies
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.remote_reads import RemoteReads

BATCH = np.dtype(
    [
        ("epoch", "i4"),  # counted by the loader from 0
        ("number", "i4"),  # of the batch in its epoch, as delivered
        ("samples", "i4"),
        ("asked", "f8"),
        ("delivered", "f8"),
        ("worker", "i4"),  # MAIN: made in the main process
        ("bytes", "i8"),  # of its tensors and arrays
        ("posted", "f8"),
        ("begun", "f8"),
        ("loaded", "f8"),
        ("collated", "f8"),
        ("sent", "f8"),
        ("arrived", "f8"),
        ("load_cpu", "f8"),  # seconds of a core that loading took
        ("cpu", "f8"),  # seconds of a core that the worker took for all of it, loading included
        ("queued", "f8"),  # seconds that the worker was ready to run but had no core
        ("opened", "f8"),  # seconds that the main process took to unpack it
        ("pinned", "f8"),  # seconds that it took the main process to pin it, or to send it to the device
        ("slowest", "f8"),  # seconds of its slowest sample, where samples were timed one by one
        ("others", "f8"),  # seconds that other workers took for parts of it
        ("loop_cpu", "f8"),  # seconds of a core that the main process took from the delivery before to `asked`
        ("main_cpu", "f8"),  # the part of that which the thread that iterates took
        ("loop_queued", "f8"),  # seconds that this thread was ready to run but had no core
    ]
)
"""One batch. From `worker` on it is what an engine knows of it, up to `others`."""

MEMORY = np.dtype([("time", "f8"), ("main", "i8"), ("workers", "i8")])
"""Memory in bytes at a time: of the main process and of all its children, shared pages counted once."""

MAIN = -1
"""The number of the main process among workers."""

Batches = npt.NDArray[np.void]


@dataclass(frozen=True)
class EpochTimes:
    """When an epoch began (`iter(loader)`), had its first batch, and was left; NaN: not yet."""

    epoch: int
    began: float
    first: float = float("nan")
    ended: float = float("nan")
    batches: int = 0
    workers: int = 0
    fresh: bool = True
    """Whether workers were started for it."""


@dataclass(frozen=True)
class Event:
    """Something that happened at a time: `kind` is "started", "died", "hung", "added", "retired" or "decided"."""

    time: float
    kind: str
    text: str
    worker: int | None = None


@dataclass(frozen=True)
class Setting:
    """The setting of a loader in its latest epoch, and the limits of the machine.

    Attributes:
        loader: whose class it is of.
        backend: who makes batches.
        num_workers: the current number.
        prefetch_factor: batches that a worker makes ahead.
        batch_size: samples of a batch; None: not known.
        in_order: whether batches come in the order of the sampler.
        free: whether any free worker makes the next batch; False: round robin.
        persistent_workers: whether workers stay from one epoch to the next.
        start_method: of worker processes.
        fork_server: whether workers are forks of one helper process, which unpickled the dataset; False: each started
            by itself.
        is_stream: whether the dataset is an iterable one.
        splits: whether each worker has a part of the data; False: it seems that each has the whole stream.
        length: batches of an epoch; None: not known.
        pin_memory: whether batches lie in page-locked memory.
        device: where batches go; empty: they stay on this machine.
        accelerator: the kind of accelerator of the machine, such as "cuda"; empty: none is known.
        cores: of this machine, that this process may use.
        remote_cores: those that workers on other machines may bring, at most.
        memory: bytes that this process and its children may take.
        dataset: the class of the dataset.
        makes_batches: whether the dataset makes whole batches.
        loads_together: whether the dataset loads the samples of a batch together (`__getitems__`).
        seeded: whether the loader has a seed.
        own_collate: whether the user gave a `collate_fn`.
        shares: whether several workers make a batch together.
        could_share: whether they would with `seed=`.
        adapts: whether the tasks that a worker holds, `prefetch_factor`, follow from how long batches take.
        spare_memory: bytes of finished batches that may wait behind one that is late.
        tuned: whether headrace chooses the number of workers by measuring, so no advice on it is needed.
        traps: what about the loader is known to go wrong.

    Examples:
        >>> loader = headrace.DataLoader([1, 2, 3], num_workers=2)
        >>> loader.setting.num_workers, loader.setting.backend
        (2, 'process')
    """

    loader: Literal["headrace", "torch"] = "headrace"
    backend: Literal["process", "thread", "inline"] = "inline"
    num_workers: int = 0
    prefetch_factor: int = 2
    batch_size: int | None = None
    in_order: bool = True
    free: bool = False
    persistent_workers: bool = False
    start_method: str = "fork"
    fork_server: bool = False
    is_stream: bool = False
    splits: bool = True
    length: int | None = None
    pin_memory: bool = False
    device: str = ""
    accelerator: str = ""
    cores: int = 1
    remote_cores: int = 0
    memory: int = 0
    dataset: str = ""
    makes_batches: bool = False
    loads_together: bool = False
    seeded: bool = False
    own_collate: bool = False
    shares: bool = False
    could_share: bool = False
    adapts: bool = False
    spare_memory: int = 0
    tuned: bool = False
    traps: tuple[Trap, ...] = ()


@dataclass(frozen=True)
class Trap:
    """Something about a loader that is known to go wrong: `name` as in `findings.TRAPS`, and the particulars."""

    name: str
    text: str


@dataclass(frozen=True)
class LoadingPlace:
    """Where the time of loading goes: `kind` is "read", "decode", "transform" or "other"."""

    kind: str
    where: str
    """The function, with its file and line."""
    share: float
    """Of the time of loading, 0 to 1."""


def worker_name(worker: int, host: str) -> str:
    """Returns what a worker is called, with its machine if that is another one; empty: it is this one."""
    if host:
        return f"worker {worker} on {host}"
    return f"worker {worker}"


@dataclass(frozen=True)
class Recording:
    """What is known of a loader: its latest batches, and sums over all of them.

    Attributes:
        label: where the script makes it, as file:line; or a name.
        setting: of the loader, in its latest epoch.
        batches: `BATCH` [n]: the latest ones, in the order of their delivery.
        epochs: when each began, had its first batch, and was left.
        memory: `MEMORY` [m], in the order of time.
        events: what happened, such as a worker that died, in the order of time.
        places: where loading spends its time, largest share first; empty: not looked at.
        totals: sums over all batches: see `totals_of`.
        first_seen: when the first epoch began.
        bad_samples: that were skipped or replaced.
        restarts: workers that died or hung, and were replaced.
        remote: what was read from object stores and servers; None: nothing was.
        live: what was read from a source that never ends; None: the data end.
        copies: what was copied to a device; None: batches stay on this machine.
        hosts: the other machines on which workers run, by the workers' numbers.

    Examples:
        >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
        >>> batches = list(loader)
        >>> len(loader.recording.batches), len(loader.recording.epochs)
        (2, 1)
    """

    label: str = "DataLoader"
    setting: Setting = field(default_factory=Setting)
    batches: Batches = field(default_factory=lambda: np.zeros(0, BATCH))
    epochs: tuple[EpochTimes, ...] = ()
    memory: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, MEMORY))
    events: tuple[Event, ...] = ()
    places: tuple[LoadingPlace, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    first_seen: float = float("nan")
    bad_samples: int = 0
    restarts: int = 0
    remote: RemoteReads | None = None
    live: LiveReads | None = None
    copies: DeviceCopies | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)

    def worker_name(self, worker: int) -> str:
        """Names a worker, with its machine if that is another one.

        Args:
            worker: its number.

        Returns:
            Words for a report.

        Examples:
            >>> headrace.types.Recording(hosts={1: "gpu-7"}).worker_name(1)
            'worker 1 on gpu-7'
        """
        return worker_name(worker, self.hosts.get(worker, ""))

    def as_json(self) -> dict[str, Any]:
        """Gives the recording as JSON knows it: arrays as lists of their columns, NaN as None.

        Returns:
            Plain values by their names.

        Examples:
            >>> plain = headrace.DataLoader([1, 2, 3]).recording.as_json()
            >>> headrace.types.Recording.from_json(plain).label == plain["label"]
            True
        """
        plain = asdict(self) | {"batches": _columns(self.batches), "memory": _columns(self.memory)}
        without: dict[str, Any] = without_nan(plain)
        return without

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Recording:
        """Makes a recording of what `as_json` returned.

        Args:
            given: plain values by their names.

        Returns:
            A recording.

        Examples:
            >>> plain = headrace.DataLoader([1, 2, 3]).recording.as_json()
            >>> recording = headrace.types.Recording.from_json(plain)
        """
        setting = dict(given["setting"])
        setting["traps"] = _records(Trap, setting["traps"])
        epochs = map(_with_nan, given["epochs"])
        return cls(
            label=given["label"],
            setting=Setting(**setting),
            batches=_array(given["batches"], BATCH),
            epochs=_records(EpochTimes, epochs),
            memory=_array(given["memory"], MEMORY),
            events=_records(Event, given["events"]),
            places=_records(LoadingPlace, given["places"]),
            totals=given["totals"],
            first_seen=_nan(given["first_seen"]),
            bad_samples=given["bad_samples"],
            restarts=given["restarts"],
            remote=_remote(given.get("remote")),
            live=_live(given.get("live")),
            copies=_copies(given.get("copies")),
            hosts={int(worker): host for worker, host in given.get("hosts", {}).items()},
        )


def _remote(given: Mapping[str, Any] | None) -> RemoteReads | None:
    if given is None:
        return None
    return RemoteReads.from_json(given)


def _live(given: Mapping[str, Any] | None) -> LiveReads | None:
    if given is None:
        return None
    return LiveReads.from_json(given)


def _copies(given: Mapping[str, Any] | None) -> DeviceCopies | None:
    if given is None:
        return None
    return DeviceCopies.from_json(given)


def workers_seen(batches: Batches, events: Iterable[Event]) -> list[int]:
    """Returns the numbers of the workers that made one of these batches, or to which something happened; sorted."""
    # A row of a loader that was not timed has no worker: its number says nothing.
    timed = np.isfinite(batches["begun"])
    workers = set(batches["worker"][timed].tolist())
    for event in events:
        if event.worker is not None:
            workers.add(event.worker)

    return sorted(workers - {MAIN})


STAGES = ("load", "collate", "send", "transport", "open", "pin", "wait", "loop")
"""Where time goes, see `stage_seconds`."""


def stage_seconds(batches: Batches) -> dict[str, npt.NDArray[np.float64]]:
    """Returns for each stage the seconds of each batch, float64 [n]; 0 where it was not measured.

    load, collate, send: of the worker (or, without workers, of the main process); transport: from its end of sending to
    the arrival, in which the main process may be busy with other things; open, pin: of the main process; wait: from
    asking to delivery; loop: of the training loop, from the delivery of this batch to the asking for the next one.
    """
    loop = np.full(len(batches), np.nan)
    if len(batches) > 1:
        same = batches["epoch"][1:] == batches["epoch"][:-1]
        loop[:-1] = np.where(same, batches["asked"][1:] - batches["delivered"][:-1], np.nan)

    seconds = {
        "load": batches["loaded"] - batches["begun"],
        "collate": batches["collated"] - batches["loaded"],
        "send": batches["sent"] - batches["collated"],
        "transport": batches["arrived"] - batches["sent"],
        "open": batches["opened"],
        "pin": batches["pinned"],
        "wait": batches["delivered"] - batches["asked"],
        "loop": loop,
    }
    # A comparison with NaN is false, so what was not measured becomes 0, too.
    return {name: np.where(values > 0, values, 0.0) for name, values in seconds.items()}


def totals_of(batches: Batches, stages: Mapping[str, npt.NDArray[np.float64]] | None = None) -> dict[str, float]:
    """Returns sums over batches: the stages, `batches`, and the columns of `SUMMED`.

    stages: those of the batches, if they are known.
    """
    if stages is None:
        stages = stage_seconds(batches)

    totals = {}
    for name, seconds in stages.items():
        totals[name] = float(seconds.sum())
    for name in SUMMED:
        totals[name] = float(np.nansum(batches[name]))

    totals["batches"] = float(len(batches))
    return totals


SUMMED = ("samples", "bytes", "cpu", "queued", "others", "loop_cpu", "main_cpu", "loop_queued")
"""Columns of `BATCH` that `totals_of` sums up as they are."""


Record = TypeVar("Record")


def _records(kind: Callable[..., Record], given: Iterable[Mapping[str, Any]]) -> tuple[Record, ...]:
    """Returns a record for each mapping of its fields."""
    return tuple(kind(**fields) for fields in given)


def _columns(rows: npt.NDArray[np.void]) -> dict[str, list[Any]]:
    return {name: without_nan(rows[name].tolist()) for name in rows.dtype.names or ()}


def _array(columns: Mapping[str, Sequence[Any]], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    names = dtype.names or ()
    rows = np.zeros(len(columns[names[0]]), dtype)
    for name in names:
        # A column that an older version did not know was not measured.
        rows[name] = list(map(_nan, columns[name])) if name in columns else math.nan
    return rows


def without_nan(value: object) -> Any:
    """Returns nested lists and dictionaries with None for NaN, which JSON does not know."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, (list, tuple)):
        return list(map(without_nan, value))
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    return value


def _nan(value: object) -> Any:
    if value is None:
        return float("nan")
    return value


def _with_nan(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _nan(value) for name, value in given.items()}
