"""What a run of a script showed: one record for each loader, and those of the processes that the script started."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.measure.wait_shares import EpochWatch, LoaderRecord, cost_of_watching
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Diagnosis
from headrace.telemetry.recorder import Listener, Recorder
from headrace.telemetry.recording import Recording


@dataclass
class MeasuredLoader:
    """One loader of the script: the record that is printed, and where its batches leave their times."""

    record: LoaderRecord
    recorder: Recorder
    watch: EpochWatch | None = None
    """What notes the batches of the current epoch, for a loader that keeps no record of itself."""


@dataclass
class Measurement:
    """What a run of a script showed. Times are in seconds."""

    script: str
    seconds: float = 0.0
    measured: list[MeasuredLoader] = field(default_factory=list)
    """The loaders of this process, in the order in which the script made them."""

    unused_defaults: dict[str, list[str]] = field(default_factory=dict)
    """For each default: the labels of the loaders that did not take it."""

    listeners: list[Listener] = field(default_factory=list)
    """Called now and then with the recorder of each loader."""

    deadline: float = math.inf
    """When the script is ended, at the next batch that it gets."""

    measuring: float = 0.0
    """Seconds that noting the batches of torch's own loader took, estimated; headrace's loader always notes them."""

    was_ended: bool = False
    """Whether it was."""

    is_kept: bool = True
    """Whether anybody will ask what the loaders did."""

    ideal: bool = False
    """Whether loaders gave one batch again and again, so that nothing is to be said of them but how fast that was."""

    on_first_loader: Callable[[], None] | None = None
    """Called when the first loader is iterated."""

    children: list[ChildMeasurement] = field(default_factory=list)
    """The processes that the script started and that used a loader, in the order of their ranks."""

    @property
    def loaders(self) -> list[LoaderRecord]:
        """The records of the loaders of this process."""
        return [loader.record for loader in self.measured]

    def settle(self) -> None:
        """Brings the records up to date."""
        for loader in self.measured:
            if loader.watch is not None:
                loader.watch.flush()
            if not self.ideal:
                loader.record.take_over(loader.recorder)

        counts = []
        for loader in self.measured:
            if loader.watch is not None:
                counts.append(loader.record.batches)

        watched = sum(counts)
        if watched:
            self.measuring = watched * cost_of_watching()
        else:
            self.measuring = 0.0

    @property
    def waited(self) -> float:
        """Time that the script waited for all its loaders together."""
        return sum(record.waited for record in self.loaders)

    def as_dict(self) -> dict[str, Any]:
        """Returns the measurement as JSON knows it."""
        diagnoses = map(diagnose, self.recordings())
        return {
            "script": self.script,
            "seconds": self.seconds,
            "waited": self.waited,
            "measuring": self.measuring,
            "loaders": list(map(LoaderRecord.as_dict, self.loaders)),
            "diagnoses": list(map(Diagnosis.as_json, diagnoses)),
            "children": list(map(ChildMeasurement.as_dict, self.children)),
        }

    def recordings(self) -> list[Recording]:
        """Returns the recordings of the loaders that were iterated, in the order in which the script made them."""
        if self.ideal:
            return []

        for loader in self.measured:
            if loader.watch is not None:
                loader.watch.flush()

        recordings = []
        for loader in self.measured:
            if loader.recorder.epoch >= 0:
                recordings.append(loader.recorder.recording())

        return recordings


@dataclass(frozen=True)
class ChildMeasurement:
    """What a process that the script started showed."""

    pid: int
    rank: int | None
    """As its launcher told it; None: no launcher did."""
    seconds: float
    """From the moment when it had imported torch to its end."""
    loaders: tuple[LoaderRecord, ...]

    @property
    def name(self) -> str:
        """What the process is called in the report."""
        if self.rank is None:
            return f"process {self.pid}"
        return f"rank {self.rank}"

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON knows it."""
        loaders = list(map(LoaderRecord.as_dict, self.loaders))
        return {"pid": self.pid, "rank": self.rank, "seconds": self.seconds, "loaders": loaders}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> ChildMeasurement:
        """Returns what `as_dict` returned."""
        loaders = []
        for loader in given["loaders"]:
            derived = ("samples_per_second", "wait_share")
            fields = {}
            for name, value in loader.items():
                if name not in derived:
                    fields[name] = value

            loaders.append(LoaderRecord(**fields))

        return cls(given["pid"], given["rank"], given["seconds"], tuple(loaders))
