"""backend="thread": what worker threads deliver, and what they leave alone in the process that they live in."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

import headrace
from headrace import DataLoader
from tests.engine.datasets import Failing, FailingStream, Nested, Photos

ROOT = Path(__file__).parents[2]

BLOCKED_AT_EXIT = """
import threading, torch
from torch.utils.data import Dataset
from headrace import DataLoader

blocked = threading.Event()

class Blocking(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 1:
            blocked.set()
            threading.Event().wait()
        return torch.tensor(index)

iterator = iter(DataLoader(Blocking(), batch_size=1, num_workers=2, backend="thread"))
print(next(iterator).item(), blocked.wait(), flush=True)
"""

BUSY_AT_EXIT = """
from headrace import DataLoader
from tests.engine.datasets import Photos
iterator = iter(DataLoader(Photos(4000), batch_size=8, num_workers=2, backend="thread"))
print(next(iterator)[1].tolist(), flush=True)
"""


class Gate(Dataset[int]):
    """Sample `blocked` waits until `opened` is set; `reached` tells that it does."""

    def __init__(self, blocked: int, length: int = 12) -> None:
        self.blocked = blocked
        self.length = length
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.blocked:
            self.reached.set()
            assert self.opened.wait(60)
        return index


class Raising(Dataset[int]):
    """Raises `error`, which need not be an Exception, for one key."""

    def __init__(self, key: int, error: BaseException) -> None:
        self.key = key
        self.error = error

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == self.key:
            raise self.error
        return index


class Places(Dataset[Any]):
    """Each sample tells where it was made."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        thread = threading.current_thread().name
        return index, (info.id, info.num_workers, info.seed, info.dataset is self) if info else None, thread


class DrawingPlaces(Places):
    """Also draws from a global generator."""

    def __getitem__(self, index: int) -> Any:
        random.random()
        return super().__getitem__(index)


class Counter(Dataset[int]):
    """Counts its own calls, in an attribute."""

    calls = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls


class Drawing(Dataset[Any]):
    """Draws two random numbers for each sample, from the named source."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return index, draw(self.source), draw(self.source)


class DrawingStream(IterableDataset[Any]):
    """Draws a random number for each number of this worker's share, from the named source."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(first, 21, step):
            yield number, draw(self.source)


class Shard(IterableDataset[int]):
    """Yields this worker's share of 21 numbers; asks for its worker late, when the first one is wanted."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        yield from range(first, 21, step)


def draw(source: str) -> float:
    draws = {
        "random": random.random,
        "numpy": np.random.rand,
        "torch": lambda: torch.rand((), dtype=torch.float64).item(),
        "headrace": lambda: headrace.rng().random(),
    }
    return float(draws[source]())


def collate_drawing(samples: list[Any]) -> Any:
    return default_collate(samples), random.random()


def as_lists(samples: list[Any]) -> list[Any]:
    return samples


def leave(worker_id: int) -> None:
    if worker_id == 1:
        sys.exit(7)


def threads(dataset: Any, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"num_workers": 2, "backend": "thread", **arguments})


def equal(one: Any, other: Any) -> bool:
    """Returns whether two batches have the same structure, types and bytes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.fixture
def worker_threads() -> Callable[[], list[str]]:
    """The function returns the names of the worker threads that came since the test began."""
    gc.collect()  # a caught exception keeps the iterator that raised it
    before = set(threading.enumerate())
    return lambda: [thread.name for thread in threading.enumerate() if thread not in before]


def global_draws() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


# -- what an epoch delivers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_equal_those_without_workers(persistent: bool) -> None:
    spec = {"image": ((3, 40, 40), "uint8", False), "parts": [((7,), "float32", True), ((), "int64", False)]}
    dataset = Nested(50, spec)
    expected = list(DataLoader(dataset, batch_size=8))
    loader = threads(dataset, batch_size=8, persistent_workers=persistent)
    for _ in range(3):
        assert equal(list(loader), expected)


@pytest.mark.parametrize("arguments", [{"batch_size": None}, {"drop_last": True}, {"collate_fn": as_lists}])
def test_epochs_equal_those_without_workers_in_every_mode_of_batching(arguments: dict[str, Any]) -> None:
    arguments = {"batch_size": 4, **arguments}
    expected = list(DataLoader(Photos(18, side=9), **arguments))
    assert equal(list(threads(Photos(18, side=9), **arguments)), expected)


def test_a_shuffled_order_is_that_of_worker_processes() -> None:
    orders = []
    for backend in ("process", "thread"):
        generator = torch.Generator().manual_seed(5)
        loader = threads(Places(), shuffle=True, batch_size=None, generator=generator, backend=backend)
        orders.append([[sample[0] for sample in loader] for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_batches_that_were_kept_never_change() -> None:
    loader = threads(Photos(64, side=60), batch_size=4, persistent_workers=True)
    kept = [batch for _ in range(3) for batch in loader]
    expected = list(DataLoader(Photos(64, side=60), batch_size=4)) * 3
    assert equal(kept, expected)
    kept[0][0].fill_(-1)
    assert equal(kept[1:], expected[1:])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_pinned_batches_are_the_same() -> None:
    assert equal(list(threads(Photos(16, side=9), batch_size=4, pin_memory=True)), list(DataLoader(Photos(16, 9), 4)))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_data_set_may_be_split_among_the_workers(
    seed: int | None, persistent: bool, drop_last: bool
) -> None:
    arguments = {"batch_size": 4, "drop_last": drop_last, "seed": seed, "persistent_workers": persistent}
    loader = threads(Shard(), **arguments)
    expected = [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    expected += [] if drop_last else [[16, 18, 20], [17, 19]]
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == expected


def test_a_finished_batch_overtakes_a_blocked_one_if_it_may() -> None:
    dataset = Gate(0, length=8)
    iterator = iter(threads(dataset, batch_size=2, in_order=False))
    assert dataset.reached.wait(60)
    assert next(iterator).tolist() == [2, 3]
    dataset.opened.set()
    assert sorted(batch.tolist() for batch in iterator) == [[0, 1], [4, 5], [6, 7]]


def test_a_finished_batch_waits_for_a_blocked_one_by_default() -> None:
    dataset = Gate(0, length=8)
    iterator = iter(threads(dataset, batch_size=2))
    assert dataset.reached.wait(60)
    dataset.opened.set()
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_several_iterators_of_a_loader_run_at_once() -> None:
    loader = threads(Photos(24, side=9), batch_size=4)
    expected = list(DataLoader(Photos(24, side=9), batch_size=4))
    pairs = list(zip(loader, loader, strict=True))
    assert equal([one for one, _ in pairs], expected)
    assert equal([other for _, other in pairs], expected)


# -- workers as data sets see them -----------------------------------------------------------------------------------


def test_workers_know_themselves_as_worker_processes_do() -> None:
    def epoch(backend: str) -> list[Any]:
        generator = torch.Generator().manual_seed(11)
        return [sample[:2] for sample in threads(Places(), batch_size=None, generator=generator, backend=backend)]

    ours = epoch("thread")
    assert ours == epoch("process")
    assert [place[0] for _, place in ours] == [0, 1] * 8
    assert all(same for _, (*_, same) in ours)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_know_themselves_with_a_seed_too(persistent: bool) -> None:
    loader = threads(Places(), batch_size=2, collate_fn=as_lists, seed=3, persistent_workers=persistent)
    for _ in range(2):
        places = [place for batch in loader for _, place, _ in batch]
        assert all(place is not None and place[1] == 2 and place[3] for place in places)
        assert places[0][0] == 0


@pytest.mark.filterwarnings("ignore:DrawingPlaces")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_know_themselves_when_all_batches_are_made_in_the_main_thread(persistent: bool) -> None:
    loader = threads(DrawingPlaces(), batch_size=2, collate_fn=as_lists, seed=3, persistent_workers=persistent)
    for _ in range(2):
        samples = [sample for batch in loader for sample in batch]
        assert {thread for _, _, thread in samples} == {threading.current_thread().name}
        assert all(place is not None and place[1] == 2 and place[3] for _, place, _ in samples)
        assert {place[0] for _, place, _ in samples} == {0, 1}
        assert get_worker_info() is None


@pytest.mark.parametrize("seed", [None, 3])
def test_the_user_s_own_threads_are_no_workers(seed: int | None) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append(get_worker_info())

    def look_everywhere() -> None:
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    for _ in threads(Places(), batch_size=2, collate_fn=as_lists, seed=seed):
        look_everywhere()
    look_everywhere()
    assert seen == [None] * 18


def test_worker_init_fn_runs_in_each_worker_with_its_number() -> None:
    seen: list[Any] = []

    def begin(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.calls = 100 * worker_id
        seen.append((worker_id, info.id, info.num_workers, threading.current_thread().name))

    assert list(threads(Counter(), batch_size=None, worker_init_fn=begin)) == [1, 101, 2, 102, 3, 103, 4, 104]
    assert sorted(seen) == [(0, 0, 2, "pt_data_worker_0"), (1, 1, 2, "pt_data_worker_1")]


def test_what_a_worker_changes_in_the_data_set_is_its_own_and_lasts_as_long_as_it_does() -> None:
    dataset = Counter()
    fresh, kept = (threads(dataset, batch_size=None, persistent_workers=persistent) for persistent in (False, True))
    assert [list(fresh) for _ in range(2)] == [[1, 1, 2, 2, 3, 3, 4, 4]] * 2
    assert [list(kept) for _ in range(2)] == [[1, 1, 2, 2, 3, 3, 4, 4], [5, 5, 6, 6, 7, 7, 8, 8]]
    assert dataset.calls == 0


def test_the_number_of_threads_that_torch_uses_is_untouched_elsewhere() -> None:
    code = """
import threading, torch
from headrace import DataLoader
torch.set_num_threads(3)
seen = [torch.get_num_threads()]
def look():
    seen.append(torch.get_num_threads())
assert len(list(DataLoader([torch.ones(())] * 8, num_workers=2, backend="thread"))) == 8
look()
thread = threading.Thread(target=look)
thread.start()
thread.join()
print(seen)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (run.stdout, run.stderr) == ("[3, 3, 3]\n", "")


# -- random numbers with seed= ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["random", "numpy", "torch"])
@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
def test_draws_from_a_global_generator_bring_a_warning_and_the_numbers_of_worker_processes(
    kind: Any, source: str
) -> None:
    expected = threads(kind(source), batch_size=4, seed=9, backend="process")
    with pytest.warns(UserWarning, match=f"{kind.__name__} .* draws from the global random generators"):
        loader = threads(kind(source), batch_size=4, seed=9)
        ours = [list(loader)]
    with pytest.warns(UserWarning, match="global random generators"):
        ours.append(list(loader))
    assert equal(ours, [list(expected), list(expected)])
    assert not equal(ours[0], ours[1])


@pytest.mark.parametrize("source", ["random", "numpy", "torch"])
@pytest.mark.parametrize("persistent", [False, True])
def test_draws_from_a_global_generator_are_those_without_workers(source: str, persistent: bool) -> None:
    expected = DataLoader(Drawing(source), batch_size=4, shuffle=True, seed=9)
    loader = threads(Drawing(source), batch_size=4, shuffle=True, seed=9, persistent_workers=persistent)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = [list(loader) for _ in range(2)]
    assert equal(ours, [list(expected), list(expected)])
    assert len(caught) == (1 if persistent else 2)


def test_draws_of_the_collate_function_count_as_well() -> None:
    expected = DataLoader(Photos(16, side=9), batch_size=4, seed=9, collate_fn=collate_drawing)
    with pytest.warns(UserWarning, match="global random generators"):
        ours = list(threads(Photos(16, side=9), batch_size=4, seed=9, collate_fn=collate_drawing))
    assert equal(ours, list(expected))


@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
@pytest.mark.parametrize("persistent", [False, True])
def test_draws_from_headrace_s_generator_bring_no_warning_and_the_same_numbers(kind: Any, persistent: bool) -> None:
    expected = threads(kind("headrace"), batch_size=4, seed=9, backend="process")
    loader = threads(kind("headrace"), batch_size=4, seed=9, persistent_workers=persistent)
    ours = [list(loader) for _ in range(2)]
    assert equal(ours, [list(expected), list(expected)])
    assert not equal(ours[0], ours[1])


@pytest.mark.filterwarnings("ignore:Drawing ")
@pytest.mark.parametrize("source", ["random", "numpy", "torch", "headrace"])
def test_the_global_generators_of_the_main_thread_are_untouched_with_a_seed(source: str) -> None:
    before = global_draws()
    for _ in threads(Drawing(source), batch_size=4, shuffle=True, seed=9):
        assert global_draws() == before
    assert global_draws() == before


# -- what fails ------------------------------------------------------------------------------------------------------


def test_an_error_names_type_worker_key_and_traceback() -> None:
    with pytest.raises(ValueError, match="bad pixel") as caught:
        list(threads(Failing(2, ValueError("bad pixel")), batch_size=4))
    text = str(caught.value)
    assert text.startswith("Caught ValueError in DataLoader worker thread 0.\nOriginal Traceback")
    assert "in __getitem__\n    raise self.error" in text
    assert "headrace: raised while loading the sample with key 2" in text


def test_after_an_error_the_following_batches_come_as_without_workers() -> None:
    seen = []
    for workers in (0, 2):
        iterator = iter(threads(Failing(5, ValueError("bad pixel")), batch_size=4, num_workers=workers))
        values: list[Any] = []
        for _ in range(5):
            try:
                values.append(next(iterator).tolist())
            except ValueError:
                values.append("bad pixel")
        seen.append(values)
    assert seen[1] == seen[0]
    assert seen[1][1:3] == ["bad pixel", [8, 9, 10, 11]]


def test_an_original_error_is_the_very_exception() -> None:
    error = ValueError("bad pixel")
    with pytest.raises(ValueError) as caught:
        list(threads(Failing(5, error), batch_size=4, original_errors=True))
    assert caught.value is error
    assert any("worker thread 1" in note for note in error.__notes__)


def test_an_error_in_a_stream_names_the_worker() -> None:
    with pytest.raises(ValueError, match=r"worker thread 0(.|\n)*the stream broke"):
        list(threads(FailingStream(), batch_size=2, num_workers=1))


@pytest.mark.parametrize("key", [2, 5])
@pytest.mark.parametrize("seed", [None, 3])
def test_an_exit_in_a_data_set_is_an_error_that_names_the_worker_and_the_code(key: int, seed: int | None) -> None:
    loader = threads(Raising(key, SystemExit(7)), batch_size=4, seed=seed)
    with pytest.raises(RuntimeError, match=r"worker thread [01] was to exit with code 7"):
        list(loader)
    with pytest.raises(RuntimeError, match=r"worker thread [01] was to exit with code 7"):
        list(loader)


@pytest.mark.parametrize("seed", [None, 3])
def test_an_exit_in_worker_init_fn_is_an_error(seed: int | None) -> None:
    with pytest.raises(RuntimeError, match="DataLoader worker thread"):
        list(threads(Photos(16, side=9), batch_size=4, worker_init_fn=leave, seed=seed))


@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupt_raised_in_a_worker_is_an_error_and_the_next_epoch_comes(persistent: bool) -> None:
    dataset = Raising(5, KeyboardInterrupt())
    loader = threads(dataset, batch_size=4, persistent_workers=persistent, timeout=10)
    with pytest.raises(RuntimeError, match="worker thread ended unexpectedly") as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    del caught
    dataset.key = -1
    assert torch.cat(list(loader)).tolist() == list(range(20))


def test_after_an_interrupt_raised_in_a_worker_its_iterator_does_not_wait_for_ever() -> None:
    iterator = iter(threads(Raising(5, KeyboardInterrupt()), batch_size=4, timeout=10))
    with pytest.raises(RuntimeError, match="worker thread ended unexpectedly"):
        list(iterator)
    with pytest.raises(RuntimeError, match=r"has been shut down|worker thread ended unexpectedly"):
        list(iterator)


def test_the_timeout_is_an_error_and_what_was_late_comes_afterwards() -> None:
    dataset = Gate(2)
    iterator = iter(threads(dataset, batch_size=2, timeout=0.2))
    assert next(iterator).tolist() == [0, 1]
    assert dataset.reached.wait(60)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iterator)
    dataset.opened.set()
    iterator._timeout = 60
    assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


# -- what is left ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_broken_off_ends_its_threads(
    persistent: bool, worker_threads: Callable[[], list[str]]
) -> None:
    loader = threads(Photos(64, side=9), batch_size=4, persistent_workers=persistent)
    for _ in loader:
        assert worker_threads() == ["pt_data_worker_0", "pt_data_worker_1"]
        break
    assert worker_threads() == (["pt_data_worker_0", "pt_data_worker_1"] if persistent else [])
    del loader
    assert worker_threads() == []


def test_persistent_workers_are_the_same_threads_in_every_epoch() -> None:
    loader = threads(Photos(16, side=9), batch_size=4, persistent_workers=True)
    expected = list(DataLoader(Photos(16, side=9), batch_size=4))
    crews = []
    for _ in range(3):
        iterator = iter(loader)
        crews.append(list(iterator._workers))
        assert equal(list(iterator), expected)
    assert crews == [crews[0]] * 3
    assert all(thread.is_alive() for thread in crews[0])


def test_an_epoch_follows_one_that_persistent_workers_did_not_finish() -> None:
    loader = threads(Photos(32, side=9), batch_size=4, persistent_workers=True)
    expected = list(DataLoader(Photos(32, side=9), batch_size=4))
    for taken in (1, 2, 5):
        iterator = iter(loader)
        assert equal([next(iterator) for _ in range(taken)], expected[:taken])
    assert equal(list(loader), expected)


def test_a_finished_epoch_ends_its_threads(worker_threads: Callable[[], list[str]]) -> None:
    loader = threads(Photos(16, side=9), batch_size=4)
    iterator = iter(loader)
    assert len(list(iterator)) == 4
    assert worker_threads() == []


@pytest.mark.parametrize("code", [BLOCKED_AT_EXIT, BUSY_AT_EXIT], ids=["blocked", "busy"])
def test_the_interpreter_ends_in_the_middle_of_an_epoch(code: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    expected = "0 True\n" if code is BLOCKED_AT_EXIT else "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert (run.stdout, run.stderr, run.returncode) == (expected, "", 0)
