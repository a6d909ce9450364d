"""An exception out of a signal handler, at any moment: no batch is lost in the state, and none comes twice."""

from __future__ import annotations

import linecache
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import headrace
from headrace.core.torch_internals import worker_info_kept
from headrace.testing import SimulatedAccelerator, accelerator

from .datasets import StatefulIterator

HANDED_OUT = {
    "del progress.drawn[number]",
    "self._ready = None",
    "return batch",
    "self._turn += 1",
    "return batch, timings",
}


class Interruption(Exception):
    """What a handler raises that is not Ctrl-C, as a job's time limit may."""


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Numbers(IterableDataset[int]):
    """Its iterator has a state, and goes on behind an exception."""

    def __iter__(self) -> Iterator[int]:
        return StatefulIterator(0, 1, 30)


@pytest.fixture(params=[KeyboardInterrupt, Interruption])
def interrupt_at(request: pytest.FixtureRequest) -> Iterator[Callable[[int], None]]:
    """Has a real signal come at the n-th line of headrace's own code that runs from here on.

    Left out are the lines behind the assignment by which `__next__` hands a batch out, and the ends of `with` blocks:
    there is no call and no jump any more, and only at those Python runs handlers. (A trace function, which the test
    needs, would run one there.)
    """
    before = signal.getsignal(signal.SIGUSR1)

    def handler(number: int, frame: FrameType | None) -> None:
        raise request.param

    signal.signal(signal.SIGUSR1, handler)

    def arm(line: int) -> None:
        left = line

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if "headrace" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
                return None
            if frame.f_code.co_filename == accelerator.__file__:
                return None  # a real driver is not interrupted
            source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if event == "line" and source not in HANDED_OUT and not source.startswith("with "):
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGUSR1)
            return trace

        sys.settrace(trace)

    with worker_info_kept():  # an interrupted loader may leave it behind, and later tests would think they are workers
        yield arm
        sys.settrace(None)
    signal.signal(signal.SIGUSR1, before)


def until_interrupted(iterator: Any, delivered: list[Any]) -> bool:
    """Takes batches until an exception comes. True: one came."""
    try:
        for batch in iterator:
            delivered.append(batch.tolist())
    except (KeyboardInterrupt, Interruption):
        return True
    return False


LINES = [*range(1, 260, 3), *range(300, 900, 23)]


@pytest.mark.quick(interrupt_at="KeyboardInterrupt", dataset="Rows")
@pytest.mark.parametrize("dataset", [Rows, Numbers])
def test_the_state_says_what_the_loop_got(interrupt_at: Callable[[int], None], dataset: Any) -> None:
    whole = [batch.tolist() for batch in headrace.DataLoader(dataset(), batch_size=4)]
    interrupted = 0
    for line in LINES:
        loader = headrace.DataLoader(dataset(), batch_size=4)
        delivered: list[Any] = []
        iterator = iter(loader)
        interrupt_at(line)
        happened = until_interrupted(iterator, delivered)
        sys.settrace(None)
        interrupted += happened
        if not happened:
            continue
        resumed = headrace.DataLoader(dataset(), batch_size=4)
        resumed.load_state_dict(loader.state_dict())
        rest = [batch.tolist() for batch in resumed]
        if len(delivered) < len(whole):  # else the next epoch comes
            assert delivered + rest == whole, f"interrupted at line {line}"
    assert interrupted > len(LINES) // 2


class Counting(Rows):
    """Its state is how many samples each copy has made."""

    made = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.made += 1
        return torch.tensor([index, self.made])

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "thread": {"num_workers": 2, "backend": "thread"},
    "process": {"num_workers": 2},
    "kept": {"num_workers": 2, "persistent_workers": True},
    "automatic": {"num_workers": "auto"},
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("seed", [None, 5])
def test_an_epoch_whose_beginning_is_interrupted_has_not_begun(
    interrupt_at: Callable[[int], None], options: dict[str, Any], seed: int | None
) -> None:
    """It begins when the loader is iterated again, or a loader that was given the state."""
    step = 111 if options.get("num_workers") else 9
    interrupted = 0
    with_seed = {"shuffle": True, "seed": seed} if seed is not None else {}
    straight = headrace.DataLoader(Counting(), batch_size=4, **with_seed, **options)
    first, second = ([batch.tolist() for batch in straight] for _ in range(2))
    for line in range(1, 2000, step):
        loader = headrace.DataLoader(Counting(), batch_size=4, **with_seed, **options)
        epoch = line % 2
        if epoch:
            assert [batch.tolist() for batch in loader] == first
        interrupt_at(line)
        try:
            iter(loader)
        except (KeyboardInterrupt, Interruption):
            interrupted += 1
        else:
            has_come = sys.gettrace() is None
            sys.settrace(None)
            if has_come:
                continue  # Python itself drops what is raised in functions that are called at a fork
            break  # `iter` has fewer lines
        state = loader.state_dict()
        assert state["epoch"] + state["finished"] == epoch
        assert state["batches"] == 0 or state["finished"]
        resumed = headrace.DataLoader(Counting(), batch_size=4, **with_seed, **options)
        resumed.load_state_dict(state)
        for again in (loader, resumed):
            assert [batch.tolist() for batch in again] == (second if epoch else first), f"interrupted at line {line}"
    assert interrupted > 2


def test_the_record_stays_in_step(interrupt_at: Callable[[int], None]) -> None:
    for line in LINES[::4]:
        loader = headrace.DataLoader(Rows(), batch_size=4)
        delivered: list[Any] = []
        iterator = iter(loader)
        interrupt_at(line)
        until_interrupted(iterator, delivered)
        sys.settrace(None)
        until_interrupted(iterator, delivered)
        rows = loader.recording.batches
        assert (rows["delivered"] >= rows["asked"]).all()
        assert set(rows["samples"].tolist()) <= {4, 2}
        assert 7 <= len(rows) <= 9  # a row may come twice, or be missing, but there is never a half of one


# What a handler raises within a finalizer, Python drops: no batch is lost by that.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_batch_is_lost_on_its_way_to_a_device(interrupt_at: Callable[[int], None]) -> None:
    whole = [batch.tolist() for batch in headrace.DataLoader(Rows(), batch_size=4)]
    interrupted = 0
    for line in LINES:
        with SimulatedAccelerator(line) as device:

            def doubled(batch: torch.Tensor, device: SimulatedAccelerator = device) -> torch.Tensor:
                device.synchronize()  # what torch computes itself is not simulated
                return batch * 2

            loader = headrace.DataLoader(Rows(), batch_size=4, device="cuda", device_transform=doubled)
            delivered: list[torch.Tensor] = []
            iterator = iter(loader)
            interrupt_at(line)
            try:
                delivered.extend(iterator)
            except (KeyboardInterrupt, Interruption):
                interrupted += 1
            sys.settrace(None)
            if len(delivered) < len(whole):
                again = headrace.DataLoader(Rows(), batch_size=4, device="cuda", device_transform=doubled)
                again.load_state_dict(loader.state_dict())
                delivered.extend(again)
            device.synchronize()
            assert [(batch // 2).tolist() for batch in delivered] == whole, f"interrupted at line {line}"
            assert device.driver.faults == []
    assert interrupted > len(LINES) // 2


class Interrupting(Rows):
    """Its sample 9 is interrupted once, while it is being loaded."""

    def __init__(self) -> None:
        self.interrupted = False

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9 and not self.interrupted:
            self.interrupted = True
            signal.raise_signal(signal.SIGUSR1)
        return super().__getitem__(index)


class Raising(Rows):
    """Its sample 9 raises once by itself."""

    raised = False

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9 and not self.raised:
            self.raised = True
            raise Interruption
        return super().__getitem__(index)


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_sample_is_not_to_blame_for_a_signal(interrupt_at: Callable[[int], None], on_error: Any) -> None:
    """Nor skipped: what the handler raises comes through, and the batch is made again."""
    loader = headrace.DataLoader(Interrupting(), batch_size=4, on_error=on_error)
    iterator, delivered = iter(loader), list[Any]()
    assert until_interrupted(iterator, delivered)
    assert len(delivered) == 2
    assert loader.state_dict()["batches"] == 2
    assert not until_interrupted(iterator, delivered)
    assert [number for batch in delivered for number in batch] == list(range(30))
    assert loader.faults.bad == 0


def test_what_a_sample_raises_itself_takes_the_place_of_its_batch() -> None:
    """As with torch's loader: the next batch is the next one."""
    loader = headrace.DataLoader(Raising(), batch_size=4)
    iterator, delivered = iter(loader), list[Any]()
    assert until_interrupted(iterator, delivered)
    assert loader.state_dict()["batches"] == 3
    until_interrupted(iterator, delivered)
    assert [number for batch in delivered for number in batch] == [*range(8), *range(12, 30)]
