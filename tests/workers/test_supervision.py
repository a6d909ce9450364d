"""Workers that die or hang: what is delivered, what is said, what is left."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import headrace
from headrace import DataLoader
from headrace.core.errors import SampleTimeoutError
from headrace.testing import Attempts, Exit, Faulty, FaultyCall, FaultyStream, Hang, Kill, Raise, Segfault, no_leaks
from tests.pairs import in_turn

DEADLY = [Kill(), Segfault(), Exit(3)]
deadly = pytest.mark.parametrize("fault", DEADLY, ids=["killed", "segfault", "exit"])
methods = pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((20, 1000), float(key * key))  # large enough for leased memory


class Drawing(Squares):
    """Draws from all generators."""

    def __getitem__(self, key: int) -> torch.Tensor:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(())), float(headrace.rng().random())]
        return torch.tensor([key, *drawn], dtype=torch.float64)


class Whole(Squares):
    """Makes whole batches, and dies of one key."""

    def __init__(self, fault: Any) -> None:
        self.fault = fault

    def fetch_batch(self, keys: Any, out: Any) -> torch.Tensor:
        if 17 in keys:
            self.fault()
        return torch.as_tensor(keys)


def first_numbers(batches: Any) -> list[list[int]]:
    return [[round(float(one.flatten()[0]) ** 0.5) for one in batch] for batch in batches]


def flattened(batches: Any) -> list[int]:
    return [key for batch in batches for key in batch]


@methods
@deadly
@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_by_chance_costs_nothing(fault: Any, times: int, method: str) -> None:
    dataset = Faulty(Squares(), {17: fault, 40: fault}, times=times)
    with no_leaks():
        loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context=method)
        kept = list(loader)
        assert first_numbers(kept) == [list(range(first, first + 4)) for first in range(0, 60, 4)]
        assert loader.faults.restarts == 2 * times
        del loader, kept


@methods
@deadly
@pytest.mark.parametrize("kind", ["items", "whole"])
def test_a_deadly_sample_is_replaced(fault: Any, kind: str, method: str) -> None:
    dataset: Any = Faulty(Squares(), {17: fault}) if kind == "items" else Whole(fault)
    loader = DataLoader(dataset, 4, num_workers=2, on_error="replace", seed=0, multiprocessing_context=method)
    batches = [batch.tolist() for batch in loader] if kind == "whole" else first_numbers(loader)
    flat = flattened(batches)
    assert len(flat) == 60
    assert [key for key in range(60) if flat[key] != key] == [17]
    (record,) = loader.faults.records
    assert (record.key, record.replacement) == (17, flat[17])
    assert "while it was loading the sample with key 17" in record.error
    again = flattened([batch.tolist() for batch in loader] if kind == "whole" else first_numbers(loader))
    assert [key for key in range(60) if again[key] != key] == [17]
    assert loader.faults.restarts == (3 if kind == "items" else 4)  # the second epoch knows it


@deadly
def test_without_a_policy_the_deadly_sample_is_named_after_all_before_it(fault: Any) -> None:
    loader = DataLoader(Faulty(Squares(), {17: fault}), 4, num_workers=2)
    batches, iterator = [], iter(loader)
    with pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid\(s\) \d+\) exited unexpectedly$") as caught:
        batches.extend(iterator)
    assert first_numbers(batches) == [list(range(first, first + 4)) for first in range(0, 16, 4)]
    cause = str(caught.value.__cause__)
    assert "while it was loading the sample with key 17." in cause
    how = {"Kill": "SIGKILL", "Segfault": "SIGSEGV", "Exit": "exited with code 3"}[type(fault).__name__]
    assert how in cause
    assert ("in __call__" in cause) == isinstance(fault, Segfault)  # the stack, where the signal lets it be written
    assert loader.faults.restarts == 2


def test_random_numbers_are_the_same_with_and_without_deaths_if_there_is_a_seed() -> None:
    dataset = Faulty(Drawing(), {key: Kill() for key in (5, 17, 40)}, times=1)
    loader = DataLoader(dataset, 4, num_workers=2, seed=3, shuffle=True)
    expected = list(DataLoader(Drawing(), 4, seed=3, shuffle=True))
    assert all(torch.equal(*pair) for pair in zip(loader, expected, strict=True))
    assert loader.faults.restarts == 3


def test_random_numbers_do_not_come_twice_without_a_seed() -> None:
    dataset = Faulty(Drawing(), {40: Kill()}, times=1)
    drawn = torch.cat(list(DataLoader(dataset, 4, num_workers=1)))
    assert drawn[:, 0].tolist() == list(range(60))
    for column in (1, 2, 3, 4):
        assert len(set(drawn[:, column].tolist())) == 60


class Counting(Squares):
    """Has a state: how many samples it made."""

    def __init__(self) -> None:
        self.made = 0

    def __getitem__(self, key: int) -> torch.Tensor:
        self.made += 1
        return torch.tensor([key, self.made])

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


class Deadly(Counting):
    """Kills its worker the first times that it comes to a key."""

    def __init__(self, key: int, times: int) -> None:
        super().__init__()
        self.key, self.times, self.attempts = key, times, Attempts()

    def __getitem__(self, key: int) -> torch.Tensor:
        if key == self.key and self.attempts.count(key) < self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


@pytest.mark.thorough
@pytest.mark.parametrize("key", [0, 1, 20, 31, 59])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_state_of_a_data_set_goes_on(key: int, persistent: bool) -> None:
    expected = DataLoader(Counting(), 4, num_workers=2, persistent_workers=persistent, prefetch_factor=4)
    loader = DataLoader(Deadly(key, 2), 4, num_workers=2, persistent_workers=persistent, prefetch_factor=4)
    for _ in range(2):
        assert torch.equal(torch.cat(list(loader)), torch.cat(list(expected)))
    assert loader.faults.restarts == 2


class Numbers(IterableDataset[torch.Tensor]):
    def __init__(self, stateful: bool) -> None:
        self.stateful = stateful

    def __iter__(self) -> Iterator[torch.Tensor]:
        return Resumable() if self.stateful else (torch.tensor([float(i), random.random()]) for i in range(30))


class Resumable:
    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Resumable:
        return self

    def __next__(self) -> torch.Tensor:
        if self.next == 30:
            raise StopIteration
        self.next += 1
        return torch.tensor([float(self.next - 1), 0.0])

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


WAYS_OF_STREAMS = list(itertools.product([True, False], [None, "auto"], [None, 3]))


@pytest.mark.quick(at=13)
@pytest.mark.filterwarnings("ignore:.*cannot say where it was")
@pytest.mark.parametrize(
    ("stateful", "shard", "seed", "at"), [(*way, at) for way, at in in_turn(WAYS_OF_STREAMS, [0, 29, 13])]
)
def test_a_stream_goes_on_where_it_was(stateful: bool, shard: Any, seed: int | None, at: int) -> None:
    def batches(dataset: Any) -> list[torch.Tensor]:
        torch.manual_seed(7)
        loader = DataLoader(dataset, 4, num_workers=2, shard=shard, seed=seed)
        found = list(loader)
        restarts.append(loader.faults.restarts)
        return found

    restarts: list[int] = []
    expected = batches(Numbers(stateful))
    found = batches(FaultyStream(Numbers(stateful), {at: Kill()}, times=2))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert restarts[0] == 0 < restarts[1] <= 2


def test_a_stream_that_kills_again_and_again_is_an_error_that_says_where() -> None:
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        list(DataLoader(FaultyStream(Numbers(True), {13: Kill()}), 4, num_workers=1, on_error="skip"))
    assert "loading sample number 13 of its stream" in str(caught.value.__cause__)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", [None, 0])
def test_nothing_comes_twice_in_any_order(in_order: bool, seed: int | None) -> None:
    dataset = Faulty(Squares(), {key: Kill() for key in range(3, 60, 10)}, times=1)
    loader = DataLoader(dataset, 2, num_workers=3, in_order=in_order, seed=seed, prefetch_factor=3)
    assert sorted(flattened(first_numbers(loader))) == list(range(60))
    assert loader.faults.restarts >= 3


def test_a_state_saved_after_deaths_is_the_same() -> None:
    def loader_of(faults: dict[int, Any]) -> DataLoader[Any]:
        return DataLoader(Faulty(Squares(), faults, times=1), 4, num_workers=2, seed=1)

    loader = loader_of({17: Kill()})
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = loader.state_dict()
    assert loader.faults.restarts == 1
    rest = loader_of({})
    rest.load_state_dict(state)
    assert first_numbers(rest) == [list(range(first, first + 4)) for first in range(24, 60, 4)]


def test_persistent_workers_that_died_idle_are_replaced_in_the_next_epoch() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        assert len(list(loader)) == 15
        assert loader._iterator is not None
        victim = loader._iterator._workers[epoch % 2]
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
    assert loader.faults.restarts >= 2


@pytest.mark.thorough
def test_the_fork_server_may_die_too() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, multiprocessing_context="spawn")
    iterator = iter(loader)
    found = [next(iterator)]
    fork_server = loader._session.resources.fork_servers._fork_server
    assert fork_server is not None and fork_server.pid is not None
    os.kill(fork_server.pid, signal.SIGKILL)
    fork_server._helper.join()
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    found.extend(iterator)
    assert flattened(first_numbers(found)) == list(range(60))
    assert loader.faults.restarts == 1


@pytest.mark.quick(seed=[None], backend="process")
@pytest.mark.parametrize("backend", ["thread", "process", "inline"])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_sample_that_hangs_is_replaced(backend: Any, seed: int | None) -> None:
    workers = 0 if backend == "inline" else 2
    dataset = Faulty(Squares(), {17: Hang(), 0: Hang()})
    loader = DataLoader(
        dataset, 4, num_workers=workers, backend=backend, on_error=headrace.OnError("replace", timeout=0.3), seed=seed
    )
    flat = flattened(first_numbers(loader))
    assert len(flat) == 60
    assert [key for key in range(60) if flat[key] != key] == [0, 17]
    assert sorted(record.key for record in loader.faults.records) == [0, 17]


@pytest.mark.parametrize("backend", ["thread", "process", "inline"])
def test_without_a_policy_a_sample_that_hangs_is_named(backend: Any) -> None:
    workers = 0 if backend == "inline" else 2
    loader = DataLoader(
        Faulty(Squares(), {17: Hang()}), 4, num_workers=workers, backend=backend, on_error=headrace.OnError(timeout=0.3)
    )
    with pytest.raises(SampleTimeoutError) as caught:
        list(loader)
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "the sample with key 17" in text
    if backend != "inline":
        assert "in __call__" in text or "__getitem__" in text  # the stack


@pytest.mark.thorough
def test_a_timeout_says_what_the_workers_do() -> None:
    loader = DataLoader(Faulty(Squares(), {17: Hang()}), 4, num_workers=2, timeout=0.5)
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0.5 seconds$") as caught:
        list(loader)
    assert "in __call__" in str(caught.value.__cause__)


@pytest.mark.thorough
def test_a_timeout_with_a_policy_replaces_the_sample() -> None:
    loader = DataLoader(Faulty(Squares(), {17: Hang()}), 4, num_workers=2, timeout=0.5, on_error="replace")
    flat = flattened(first_numbers(loader))
    assert [key for key in range(60) if flat[key] != key] == [17]


def hang_about_it(bad: Any) -> Any:
    Hang()()


@pytest.mark.thorough
def test_an_on_error_that_hangs_is_named_and_accuses_no_sample() -> None:
    dataset = Faulty(Squares(), {17: Raise(ValueError("bad"))})
    loader = DataLoader(dataset, 4, num_workers=2, on_error=headrace.OnError(hang_about_it, timeout=0.3))
    with pytest.raises(SampleTimeoutError, match="asking on_error about the sample with key 17"):
        list(loader)
    assert loader.faults.bad == 0


@pytest.mark.thorough
def test_slow_samples_are_not_taken_for_hanging() -> None:
    gc.collect()  # iterators that other tests have left wait for their workers: not in a thread that is watched here
    dataset = Faulty(Squares(), {key: Hang(0.15) for key in range(8)})
    for backend in ("process", "thread"):
        loader = DataLoader(dataset, 8, num_workers=1, backend=backend, on_error=headrace.OnError(timeout=1.0))  # type: ignore[arg-type]
        assert flattened(first_numbers(loader)) == list(range(60))
        assert loader.faults.restarts == 0


def test_a_worker_that_waits_for_the_user_does_not_hang() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, on_error=headrace.OnError(timeout=0.2))
    iterator = iter(loader)
    found = [next(iterator)]
    threading.Event().wait(0.6)  # the step of the user takes its time
    found.extend(iterator)
    assert flattened(first_numbers(found)) == list(range(60))
    assert loader.faults.restarts == 0


def test_a_worker_that_never_starts_is_given_up() -> None:
    init = FaultyCall(print, Kill(), every=1)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        list(DataLoader(Squares(), 4, num_workers=2, worker_init_fn=init))
    assert "while it was starting" in str(caught.value.__cause__)


def test_one_death_is_logged_with_all_that_is_known(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        list(DataLoader(Faulty(Squares(), {17: Segfault()}, times=1), 4, num_workers=2))
    (record,) = caplog.records
    text = record.getMessage()
    assert "was killed by signal 11 (SIGSEGV, Segmentation fault) while it was loading the sample with key 17" in text
    assert "it is replaced (batches to make again: " in text
    assert "Segmentation fault" in text and "in __call__" in text
