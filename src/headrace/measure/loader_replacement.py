"""Replaces torch's loader by a measured one, for all code that asks torch for it from then on.

A replaced class must look like the one it replaces: frameworks read its signature to build loaders anew, subclass it
with `DataLoader[Sample]`, and pickle it for the processes that they start.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch.utils.data
import torch.utils.data.dataloader

import headrace
import headrace.loader.dataloader
from headrace.core.errors import StateError
from headrace.core.text.log_once import warn_once
from headrace.core.torch_internals import TorchIterator
from headrace.faults.policy import OnError
from headrace.loader.dataloader import DataLoader
from headrace.loader.iterator import LoaderIterator
from headrace.loader.setting import torch_setting
from headrace.measure.child_environment import not_measured_if_spawned
from headrace.measure.measurement import MeasuredLoader, Measurement
from headrace.measure.script_modules import around_import
from headrace.measure.wait_shares import Digest, EpochWatch, LoaderRecord, Replay, TimeIsUp
from headrace.telemetry.labels import label_for
from headrace.telemetry.recorder import Recorder

TORCH_LOADER: type = torch.utils.data.DataLoader

STATEFUL_MODULE = "torchdata.stateful_dataloader"
"""The module of torchdata whose loader is torch's with a state, as ours is."""

NEED_WORKERS = {"prefetch_factor", "persistent_workers", "multiprocessing_context"}
"""Arguments that torch refuses without workers."""

UNKNOWN_LENGTH = 200
"""Batches of an epoch of a stream that is replaced by one batch."""

OF_ON_ERROR = {"on_error": "action", "quarantine": "log", "sample_timeout": "timeout"}
"""Options about bad samples, and the fields of `OnError` that they set."""

NOT_PLAIN = frozenset(OF_ON_ERROR)
"""Arguments that torch's own loader does not have."""

T_co = TypeVar("T_co", covariant=True)


class Replacement(NamedTuple):
    """How a script's loaders are replaced."""

    plain: bool = False
    """Keep torch's own loader, measured; otherwise it is ours."""
    digest: bool = False
    """Compute a checksum of the batches of each loader."""
    ideal: bool = False
    """Give the first batch of each epoch again and again: a loader that costs nothing."""


def replace_loader(measurement: Measurement, replacement: Replacement, defaults: dict[str, Any]) -> Callable[[], None]:
    """Makes `torch.utils.data.DataLoader` a measured loader for all code that is imported from now on.

    `headrace.DataLoader` is measured as well, with `replacement.plain` too. torchdata's `StatefulDataLoader` is
    replaced if the script imports it, since ours has a state of its own. With `replacement.plain` it stays as it is,
    and is not measured.

    defaults: arguments for calls that do not give them. Returns what puts all classes back.
    """
    measurement.ideal = replacement.ideal
    if measurement.deadline < math.inf:
        measurement.listeners.append(functools.partial(_end_in_time, measurement))

    if replacement.plain:
        base = TORCH_LOADER
    else:
        base = DataLoader

    measured = _measured_class(base, measurement, replacement, defaults)
    if replacement.plain:
        our_measured = _measured_class(DataLoader, measurement, replacement, defaults, found_in=DataLoader.__module__)
    else:
        our_measured = _own_class(measured)
        measured.state_dict = _state_if_any

    _set_loader(measured)
    _set_own_loader(our_measured)

    @contextmanager
    def with_own_loader(module: Any) -> Iterator[None]:
        # torchdata's class is to be derived from torch's, which it expects private parts of, and not from ours.
        _set_loader(TORCH_LOADER)
        try:
            yield
        finally:
            _set_loader(measured)

        if not replacement.plain:
            stateful = _measured_class(base, measurement, replacement, defaults, _take_torchdata_s_order)
            undo.callback(_set_stateful, module, module.StatefulDataLoader)
            _set_stateful(module, stateful)

    undo = contextlib.ExitStack()
    undo.callback(_set_loader, TORCH_LOADER)
    undo.callback(_set_own_loader, DataLoader)
    undo.callback(around_import(STATEFUL_MODULE, with_own_loader))
    return undo.close


def _set_stateful(module: Any, loader: type) -> None:
    module.StatefulDataLoader = loader
    module.stateful_dataloader.StatefulDataLoader = loader


def _set_loader(loader: type) -> None:
    torch.utils.data.DataLoader = loader  # type: ignore[misc,assignment]
    torch.utils.data.dataloader.DataLoader = loader  # type: ignore[misc,assignment]


def _set_own_loader(loader: type) -> None:
    """Sets the class that `from headrace import DataLoader` gives."""
    headrace.DataLoader = loader  # type: ignore[misc,assignment]
    headrace.loader.dataloader.DataLoader = loader  # type: ignore[misc,assignment]


def _end_in_time(measurement: Measurement, _: Recorder, now: float) -> None:
    """Ends the script once its time is over. A listener: no batch has been taken that would be lost.

    `now` does not tell the time at the end of an epoch, so the clock is asked.
    """
    if time.perf_counter() > measurement.deadline:
        raise TimeIsUp(0)


class _Measuring:
    """What the loaders of one replaced class do besides loading: they leave their figures in a `Measurement`."""

    def __init__(self, base: Any, measurement: Measurement, replacement: Replacement) -> None:
        self._measurement = measurement
        self._replacement = replacement
        self._kind = base.__module__.partition(".")[0]
        self.keeps_own_record = issubclass(base, DataLoader)

    def entry_of(self, loader: Any) -> MeasuredLoader:
        """Returns the figures of a loader; they begin here, if the loader's constructor has not begun them."""
        entry: MeasuredLoader | None = vars(loader).get("_measured")
        if entry is not None:
            return entry

        if self.keeps_own_record:
            recorder = loader.recorder
        else:
            label = label_for(loader, loader.dataset)
            recorder = Recorder(label.text, is_rebuild=label.is_rebuild)

        if self._replacement.digest:
            digest = 0
        else:
            digest = None

        record = LoaderRecord(recorder.label, self._kind, loader.num_workers, digest=digest)
        entry = MeasuredLoader(record, recorder)
        loader._measured = entry
        if self._measurement.is_kept:
            self._measurement.measured.append(entry)
        recorder.listeners.extend(self._measurement.listeners)
        return entry

    def begin(self, loader: torch.utils.data.DataLoader[Any], began: float) -> MeasuredLoader:
        """An epoch begins. Returns the figures of the loader."""
        measurement = self._measurement
        if measurement.on_first_loader is not None:
            measurement.on_first_loader()
            measurement.on_first_loader = None

        # An epoch that was left before its end has handed over only a part of what it noted.
        entry = self.entry_of(loader)
        if entry.watch is not None:
            entry.watch.flush()
        if not self.keeps_own_record:
            entry.recorder.begin_epoch(began, torch_setting(loader), fresh=not loader.persistent_workers)
        return entry

    def watched(self, iterator: Any, loader: Any, entry: MeasuredLoader, began: float) -> Any:
        """Returns the iterator that the script gets."""
        if self._replacement.ideal:
            return Replay(iterator, _length_of(loader), entry.record, self._measurement.deadline)
        # A subclass, such as LitData's loader, may make an iterator of torch's itself.
        is_torch_s = isinstance(iterator, TorchIterator) and not isinstance(iterator, LoaderIterator)
        if is_torch_s and self.keeps_own_record:
            entry.record.kind = "torch"
            entry.recorder.begin_epoch(began, torch_setting(loader), fresh=not loader.persistent_workers)
        if is_torch_s:
            entry.watch = EpochWatch(entry.recorder)
            entry.watch.attach(iterator)

        if self._replacement.digest:
            Digest(entry.record).attach(iterator)
        return iterator


def _take_torchdata_s_order(loader: torch.utils.data.DataLoader[Any]) -> None:
    """Gives a loader that shuffles the samplers that torchdata's loader makes, so that its order stays."""
    if type(loader.sampler) is not torch.utils.data.RandomSampler or loader.batch_size is None:
        return

    from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler

    sampler = RandomSampler(loader.dataset, generator=loader.generator)
    # torch lets nobody set these attributes once a loader is made.
    vars(loader)["sampler"] = sampler
    vars(loader)["batch_sampler"] = BatchSampler(sampler, loader.batch_size, loader.drop_last)


def _leave_as_it_is(loader: object) -> None:
    """Does nothing: the samplers are torch's."""


def _measured_class(
    base: Any,
    measurement: Measurement,
    replacement: Replacement,
    defaults: dict[str, Any],
    set_samplers: Callable[[Any], None] = _leave_as_it_is,
    found_in: str = TORCH_LOADER.__module__,
) -> Any:
    """Returns a subclass of `base` whose loaders leave their figures in `measurement`.

    The figures begin with the first `__iter__` at the latest: a subclass may never call this `__init__`.
    `set_samplers` may change those of a new loader. `found_in`: the module in which it takes the place of `DataLoader`.
    """
    signature = inspect.signature(base)
    measuring = _Measuring(base, measurement, replacement)

    class MeasuredDataLoader(base[T_co]):  # type: ignore[misc]
        @functools.wraps(base.__init__)  # type: ignore[misc]  # mypy expects a plain method
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            # torchdata's: a state of ours is always of the latest batch.
            kwargs.pop("snapshot_every_n_steps", None)
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                # A wrong call: torch's own constructor says what is wrong with it.
                super().__init__(*args, **kwargs)
                return

            used = applicable(defaults, given)
            super().__init__(**{**given, **fault_argument(used, given)})
            set_samplers(self)
            label = measuring.entry_of(self).recorder.label
            for name in defaults.keys() - used.keys():
                measurement.unused_defaults.setdefault(name, []).append(label)

        def __iter__(self) -> Any:
            began = time.perf_counter()
            entry = measuring.begin(self, began)
            with not_measured_if_spawned(self):
                iterator = super().__iter__()
            return measuring.watched(iterator, self, entry, began)

        def __getstate__(self) -> Any:
            """Leaves the figures out: they belong to this loader in this process."""
            if measuring.keeps_own_record:
                state: Any = super().__getstate__()
            else:
                state = vars(self)
            kept_state = {}
            for name, value in state.items():
                if name != "_measured":
                    kept_state[name] = value

            return kept_state

    # Under this name an unpickled loader finds its class: the measured one, or the usual one in an ordinary process.
    MeasuredDataLoader.__name__ = MeasuredDataLoader.__qualname__ = "DataLoader"
    MeasuredDataLoader.__module__ = found_in
    MeasuredDataLoader.__doc__ = base.__doc__
    return MeasuredDataLoader


class _AllOfOurs(type):
    """Counts every loader of ours as one of `headrace.DataLoader`, also those that were made by torch's name."""

    def __instancecheck__(cls, instance: object) -> bool:
        if super().__instancecheck__(instance):
            return True
        return cls is headrace.DataLoader and isinstance(instance, DataLoader)


def _own_class(measured: Any) -> Any:
    """Returns the class that `from headrace import DataLoader` gives, where `measured` takes the place of torch's."""

    class OwnDataLoader(measured[T_co], metaclass=_AllOfOurs):  # type: ignore[misc]
        state_dict = DataLoader.state_dict

    OwnDataLoader.__name__ = OwnDataLoader.__qualname__ = DataLoader.__qualname__
    OwnDataLoader.__module__ = DataLoader.__module__
    OwnDataLoader.__doc__ = DataLoader.__doc__
    return OwnDataLoader


def _state_if_any(loader: DataLoader[Any]) -> dict[str, Any]:
    """Returns the state of a loader that the script takes for torch's; an empty one, if none can be taken.

    Frameworks save the state of each loader that has this method. torch's has none: it begins anew, as from here.
    """
    try:
        return DataLoader.state_dict(loader)
    except StateError as error:
        name = type(loader.dataset).__qualname__
        warn_once(f"{name}, saved", f"no state of the loader is saved, as with torch's:\n{error}")
        return {}


def _length_of(loader: Sized) -> int:
    """Returns how many batches an epoch has; a round number if the loader cannot say."""
    try:
        return len(loader)
    except TypeError:
        return UNKNOWN_LENGTH


def fault_argument(used: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the options about bad samples to the one argument that a loader has for them: `on_error`."""
    joined = {}
    fields = {}
    for name, value in used.items():
        if name in OF_ON_ERROR:
            fields[OF_ON_ERROR[name]] = value
        else:
            joined[name] = value

    if fields:
        joined["on_error"] = replace(OnError.of(given.get("on_error", "raise")), **fields)
    return joined


def applicable(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults that a call takes: what it does not give itself and, without workers, nothing about them."""
    asked = OnError.of(given.get("on_error", "raise"))
    untouched = OnError()
    used: dict[str, Any] = {}
    for name, value in defaults.items():
        if name in OF_ON_ERROR:
            field = OF_ON_ERROR[name]
            is_free = getattr(asked, field) == getattr(untouched, field)
        else:
            is_free = name not in given

        if is_free:
            used[name] = value

    if not {**used, **given}.get("num_workers"):
        for name in NEED_WORKERS & used.keys():
            del used[name]
    return used
