"""Datasets around others in which some samples go wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeGuard

from torch.utils.data import Dataset, IterableDataset

from headrace.core.protocols import is_stateful
from headrace.testing.attempts import Attempts
from headrace.testing.faults import Fault


class Faulty(Dataset[Any]):
    """A map-style dataset around another one in which faults happen at some keys.

    `__getitems__` is there if the dataset has it. Its other attributes are too, apart from `fetch_batch` of headrace's
    own datasets: samples are then read one by one. A fault that returns, like `Hang(0.1)`, is followed by the sample.

    Attributes:
        attempts: how often each key of `faults` was met: `faulty.attempts.of(key)`. Other keys are not counted.

    Args:
        dataset: any map-style one.
        faults: which fault happens at which key.
        attempts: a counter to share; None: one of its own.
        times: how often at each key, counted over all workers, epochs and restarts; None: always.
        at: `"item"`: whenever the sample is read, alone or in a batch. `"batch"`: only when the loader reads several at
            once through `__getitems__`, so that each sample alone is sound.

    Examples:
        >>> from headrace.testing import Faulty, Raise
        >>> dataset = Faulty([1, 2, 3], {1: Raise(ValueError("broken"))}, times=1)
        >>> loader = headrace.DataLoader(dataset, batch_size=3, on_error="skip")
        >>> list(loader), list(loader)
        ([tensor([1, 3])], [tensor([1, 2, 3])])
    """

    def __init__(
        self,
        dataset: Any,
        faults: Mapping[Any, Fault],
        *,
        attempts: Attempts | None = None,
        times: int | None = None,
        at: Literal["item", "batch"] = "item",
    ) -> None:
        self.dataset = dataset
        self.faults = dict(faults)
        self.attempts = attempts or Attempts()
        """How often each key of `faults` was met: `faulty.attempts.of(key)`. Other keys are not counted."""
        self.times = times
        self.at = at

    def __getitem__(self, key: object) -> Any:
        if self.at == "item":
            self._meet(key)
        return self.dataset[key]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Told to have `__getitems__` only if the dataset has it: loaders look for it, and read one by one without it.
        if name == "__getitems__":
            self.dataset.__getitems__  # noqa: B018 - the AttributeError, if there is none
            return self._several

        # `dataset` is asked for here while the object is unpickled, before it is set. It would be asked for again and
        # again.
        if name.startswith("__") or name in {"dataset", "fetch_batch"}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def _several(self, keys: list[Any]) -> Any:
        for key in keys:
            self._meet(key)
        return self.dataset.__getitems__(keys)

    def _meet(self, key: object) -> None:
        # A list or tuple is several keys at once, unless it is itself the key of a fault.
        sample_keys: Sequence[object] = (key,)
        if isinstance(key, (list, tuple)) and not _is_known(key, self.faults):
            sample_keys = key

        for sample_key in sample_keys:
            if _is_known(sample_key, self.faults):
                _happen(self.faults[sample_key], self.attempts, sample_key, self.times)


class FaultyStream(IterableDataset[Any]):
    """An iterable dataset around any iterable in which faults happen at some positions.

    Positions count the samples of one iterator from 0: with workers, each worker's own. A sample at which a fault
    raises is lost, and the next call goes on behind it, as readers of files do that skip a bad record.

    If the dataset or its iterator has `state_dict` and `load_state_dict`, so has the iterator of this one; the position
    is part of the state.

    Attributes:
        attempts: how often each position of `faults` was met: `stream.attempts.of(position)`.

    Args:
        dataset: any iterable.
        faults: which fault happens at which position.
        attempts: a counter to share; None: one of its own.
        times: how often at each position, counted over all workers, epochs and restarts; None: always.

    Examples:
        >>> from headrace.testing import FaultyStream, Raise
        >>> stream = FaultyStream([1, 2, 3], {1: Raise(ValueError("broken"))})
        >>> list(headrace.DataLoader(stream, batch_size=3, on_error="skip"))
        [tensor([1, 3])]
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        faults: Mapping[int, Fault],
        *,
        attempts: Attempts | None = None,
        times: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.faults = dict(faults)
        self.attempts = attempts or Attempts()
        """How often each position of `faults` was met: `stream.attempts.of(position)`."""
        self.times = times

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.dataset)
        for stateful in (iterator, self.dataset):
            if is_stateful(stateful):
                return _StatefulFaultySamples(self, iterator, stateful)
        return _FaultySamples(self, iterator)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def meet(self, position: int) -> None:
        """Lets the fault of a position happen, if there is one."""
        if position in self.faults:
            _happen(self.faults[position], self.attempts, position, self.times)


class _FaultySamples:
    """A class, not a generator: a generator ends with the first exception."""

    def __init__(self, stream: FaultyStream, iterator: Iterator[Any]) -> None:
        self._stream = stream
        self._iterator = iterator
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        position = self.position
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise
        except Exception:
            self.position += 1
            raise

        self.position += 1
        self._stream.meet(position)
        return sample


class _StatefulFaultySamples(_FaultySamples):
    def __init__(self, stream: FaultyStream, iterator: Iterator[Any], stateful: Any) -> None:
        super().__init__(stream, iterator)
        self._stateful = stateful

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "wrapped": self._stateful.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stateful.load_state_dict(state["wrapped"])
        # A dataset goes on from its state in its next iterator: the one that was made before would begin anew.
        if self._stateful is self._stream.dataset and self._stateful is not self._iterator:
            self._iterator = iter(self._stream.dataset)
        self.position = state["position"]


def _is_known(key: object, faults: Mapping[Any, Fault]) -> TypeGuard[Hashable]:
    return isinstance(key, Hashable) and key in faults


def _happen(fault: Fault, attempts: Attempts, key: Hashable, times: int | None) -> None:
    number = attempts.count(key)
    if times is None or number < times:
        fault()
