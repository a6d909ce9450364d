"""Runs a training script as it is, with torch's loader replaced and the waiting measured."""

from __future__ import annotations

import inspect
import math
import runpy
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch.utils.data
import torch.utils.data.dataloader

from headrace.engine.setting import torch_setting
from headrace.faults.ledger import Ledger
from headrace.loader import DataLoader
from headrace.observe.findings.diagnose import diagnose
from headrace.observe.recorder import Listener, Recorder, caller
from headrace.observe.recording import Recording
from headrace.observe.waiting import EpochWatch, LoaderRecord, Replay

TORCH_LOADER: type = torch.utils.data.DataLoader

NEED_WORKERS = {"prefetch_factor", "persistent_workers", "multiprocessing_context"}
"""Arguments that torch refuses without workers."""


UNKNOWN_LENGTH = 200
"""Batches of an epoch of a stream that is replaced by one batch."""

NOT_PLAIN = {"on_error", "quarantine", "sample_timeout"}
"""Arguments that torch's own loader does not have."""


@dataclass
class Measurement:
    """What a run of a script showed. Times are in seconds."""

    script: str
    seconds: float = 0.0
    loaders: list[LoaderRecord] = field(default_factory=list)
    unused_defaults: dict[str, list[str]] = field(default_factory=dict)
    """For each default: the labels of the loaders that did not take it."""

    recorders: list[Recorder] = field(default_factory=list)
    """Where loaders leave the times of their batches."""

    listeners: list[Listener] = field(default_factory=list)
    """Called now and then with each of them."""

    deadline: float = math.inf
    """When the script is ended, at the next batch that it gets."""

    was_ended: bool = False
    """Whether it was."""

    ideal: bool = False
    """Whether loaders gave one batch again and again, so that nothing is to be said of them but how fast that was."""

    ledgers: list[tuple[LoaderRecord, Ledger]] = field(default_factory=list)
    """Where loaders count what was lost, with the records that shall say it."""

    def settle(self) -> None:
        """Takes over into the records what was lost."""
        for record, ledger in self.ledgers:
            faults = ledger.faults()
            record.bad_samples, record.restarts = faults.bad, faults.restarts

    @property
    def waited(self) -> float:
        """Time that the script waited for all its loaders together."""
        return sum(record.waited for record in self.loaders)

    def as_dict(self) -> dict[str, Any]:
        """Returns the measurement as JSON knows it."""
        loaders = [record.as_dict() for record in self.loaders]
        findings = [diagnose(recording).as_json() for recording in self.recordings()]
        figures = {"script": self.script, "seconds": self.seconds, "waited": self.waited}
        return {**figures, "loaders": loaders, "diagnoses": findings}

    def recordings(self) -> list[Recording]:
        """Returns the recordings of the loaders that were iterated, in the order in which the script made them."""
        if self.ideal:
            return []
        return [recorder.recording() for recorder in self.recorders if recorder.epoch >= 0]


def run_script(target: str, arguments: Sequence[str], *, as_module: bool = False) -> None:
    """Runs a script file (or a module) as `python` would: as `__main__`, with its `sys.argv` and `sys.path[0]`.

    Raises what the script raises, `SystemExit` included.
    """
    if as_module:
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = [target, *arguments]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    path = Path(target)
    code = compile(path.read_bytes(), str(path), "exec")
    sys.argv = [target, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    sys.modules["__main__"] = main  # kept after the end: exit handlers of the script may need its names
    exec(code, main.__dict__)


class Way(NamedTuple):
    """How a script's loaders are replaced."""

    plain: bool = False
    """Keep torch's own loader, measured; otherwise it is ours."""
    digest: bool = False
    """Compute a checksum of the batches of each loader."""
    ideal: bool = False
    """Give the first batch of each epoch again and again: a loader that costs nothing."""


def replace_loader(measurement: Measurement, way: Way, defaults: dict[str, Any]) -> None:
    """Makes `torch.utils.data.DataLoader` a measured loader for all code that is imported from now on.

    defaults: arguments for calls that do not give them.
    """
    measurement.ideal = way.ideal
    base = TORCH_LOADER if way.plain else DataLoader
    measured = _measured(base, measurement, way, defaults)
    torch.utils.data.DataLoader = measured  # type: ignore[misc,assignment]
    torch.utils.data.dataloader.DataLoader = measured  # type: ignore[misc,assignment]


def _measured(base: type, measurement: Measurement, way: Way, defaults: dict[str, Any]) -> type:
    signature = inspect.signature(base)

    class MeasuredLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            place = caller()
            try:
                given = signature.bind_partial(*args, **kwargs).arguments
            except TypeError:
                given = kwargs  # a wrong call: torch's own constructor says what is wrong with it
            used = applicable(defaults, given)
            for name in defaults.keys() - used.keys():
                measurement.unused_defaults.setdefault(name, []).append(place)
            kwargs.update(used)
            super().__init__(*args, **kwargs)
            self._recorded = isinstance(self, DataLoader)
            self._watcher = self.recorder if self._recorded else Recorder(place)
            self._record = LoaderRecord(self._watcher.label, base.__module__.partition(".")[0], self.num_workers)
            self._record.digest = 0 if way.digest else None
            measurement.loaders.append(self._record)
            self._watcher.listeners.extend(measurement.listeners)
            measurement.recorders.append(self._watcher)
            if self._recorded:
                measurement.ledgers.append((self._record, self.loss_ledger))

        def __iter__(self) -> Any:
            began = time.perf_counter()
            if not self._recorded:
                self._watcher.begin_epoch(began, torch_setting(self), fresh=not self.persistent_workers)
            iterator = super().__iter__()
            if way.ideal:
                return Replay(iterator, _length_of(self), self._record, measurement.deadline)
            recorder = None if self._recorded else self._watcher
            EpochWatch(self._record, began, recorder=recorder, deadline=measurement.deadline).attach(iterator)
            return iterator

    MeasuredLoader.__name__ = MeasuredLoader.__qualname__ = "DataLoader"
    MeasuredLoader.__module__ = base.__module__
    MeasuredLoader.__doc__ = base.__doc__
    return MeasuredLoader


def _length_of(loader: Any) -> int:
    """Returns how many batches an epoch has; a round number if the loader cannot say."""
    try:
        return len(loader)
    except TypeError:
        return UNKNOWN_LENGTH


def applicable(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults that a call takes: what it does not give itself and, without workers, nothing about them."""
    used = {name: value for name, value in defaults.items() if name not in given}
    if not {**used, **given}.get("num_workers"):
        used = {name: value for name, value in used.items() if name not in NEED_WORKERS}
    return used
