"""Several tasks and several results in one message: how many, and that nothing is lost or late."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, RandomSampler, Sampler, get_worker_info

import headrace
from headrace.telemetry.stopwatch import NO_TIMES
from headrace.workers.processes.messages import INLINE, UNREAD, Result, unpacked
from headrace.workers.processes.outbox import IN_A_ROW, LONGEST, QUICK, Outbox
from headrace.workers.stragglers.prefetch import BYTES, DEFAULT, FEW, LOOK, MOST, WORK, Prefetch
from tests.workers.datasets import EndsLate

LENGTH = 600


class Rows(Dataset[Any]):
    """Sample i is i, with the worker that made it."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index, -1 if info is None else info.id


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))


class Uneven(IterableDataset[int]):
    """Each worker has a stream of its own; that of the first one is short."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(1000 * info.id, 1000 * info.id + (40 if info.id == 0 else 69)))


class Dying(Rows):
    """Kills its worker at one sample, the first time."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == LENGTH // 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Pausing(Rows):
    """Takes long for one sample, in the middle of quick ones."""

    def __getitem__(self, index: int) -> Any:
        if index == LENGTH // 2:
            time.sleep(0.3)
        return super().__getitem__(index)


class Own(Sampler[int]):
    """A sampler of the user's, which may care when it is asked."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))

    def __len__(self) -> int:
        return LENGTH


def result(began: float, status: str = "batch", header: bytes = b"") -> Result:
    return Result(0, 0, status, header, [], [], 0, [], NO_TIMES._replace(begun=began), [])


def sizes(pipe: Any) -> list[int]:
    """Returns how many results each message has that was sent."""
    found = []
    while pipe.poll(0):
        found.append(len(unpacked(pipe.recv_bytes())))
    return found


def prefetch_of(loader: Any) -> int:
    return int(loader._iterator.executor.scale.prefetch)


# -- how many tasks a worker holds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "nbytes", "tasks"),
    [
        (WORK / 8.5, 1, 8),
        (WORK / 1000, 1, MOST),
        (WORK, 1, DEFAULT),
        (1.0, 1, DEFAULT),
        (WORK / 1000, BYTES // 2 // 10, 10),
        (WORK / 1000, 2 * BYTES, DEFAULT),
        (0.0, 0, MOST),
    ],
)
def test_quick_and_small_batches_are_held_in_numbers(seconds: float, nbytes: int, tasks: int) -> None:
    prefetch = Prefetch(2)
    changes = [prefetch.made(seconds, nbytes) for _ in range(LOOK)]
    assert prefetch.tasks == tasks
    assert changes == [False] * (LOOK - 1) + [tasks != DEFAULT]


def test_a_few_slow_batches_say_nothing_and_many_do() -> None:
    prefetch = Prefetch(2)
    for _ in range(LOOK):
        prefetch.made(WORK / 8.5, 1)
    for number in range(LOOK):
        prefetch.made(1.0 if number < FEW else WORK / 8.5, 1)
    assert prefetch.tasks == 8
    for number in range(LOOK):
        prefetch.made(1.0 if number < FEW + 1 else WORK / 8.5, 1)
    assert prefetch.tasks == DEFAULT


CHOSEN: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "with a seed": {"shuffle": True, "seed": 3},
    "torch's sampler": {"sampler": RandomSampler(range(LENGTH))},
    "one rank of torch's": {"sampler": DistributedSampler(range(LENGTH), 1, 0)},
}
ASKED_FOR: dict[str, dict[str, Any]] = {
    "prefetch_factor": {"prefetch_factor": 3},
    "a sampler of the user's": {"sampler": Own()},
    "a generator of the user's": {"shuffle": True, "generator": torch.Generator()},
    "batches of the user's": {"batch_sampler": [[number] for number in range(LENGTH)]},
}


@pytest.mark.parametrize("options", CHOSEN.values(), ids=list(CHOSEN))
def test_workers_hold_more_than_torchs_default(options: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 1, num_workers=2, persistent_workers=True, **options)
    assert sorted(int(number) for number, _ in loader) == list(range(LENGTH))
    assert prefetch_of(loader) > DEFAULT
    assert sorted(int(number) for number, _ in loader) == list(range(LENGTH))


@pytest.mark.parametrize("options", ASKED_FOR.values(), ids=list(ASKED_FOR))
def test_what_was_asked_for_holds(options: dict[str, Any]) -> None:
    if "batch_sampler" not in options:
        options = {"batch_size": 1, **options}
    loader = headrace.DataLoader(Rows(), num_workers=2, persistent_workers=True, **options)
    assert sorted(int(number) for number, _ in loader) == list(range(LENGTH))
    assert prefetch_of(loader) == options.get("prefetch_factor", DEFAULT)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [10, 300, 590])
def test_a_generator_that_the_loop_uses_too_gives_the_numbers_that_it_gives_with_torch(stop: int) -> None:
    def drawn(kind: Any) -> float:
        generator = torch.Generator().manual_seed(4)
        for number, _ in enumerate(kind(Rows(), 1, shuffle=True, generator=generator, num_workers=2)):
            if number == stop:
                return float(torch.rand((), generator=generator))
        raise AssertionError("the epoch is too short")

    assert drawn(headrace.DataLoader) == drawn(torch.utils.data.DataLoader)


def test_streams_are_read_no_further_ahead_than_by_torch() -> None:
    loader = headrace.DataLoader(Numbers(), 1, num_workers=1, persistent_workers=True)
    assert [int(number) for number in loader] == list(range(LENGTH))
    assert prefetch_of(loader) == DEFAULT


def test_task_k_is_made_by_worker_k_modulo_n_however_many_are_held() -> None:
    loader = headrace.DataLoader(Rows(), 1, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert [(int(number), int(worker)) for number, worker in loader] == [(n, n % 2) for n in range(LENGTH)]
    assert prefetch_of(loader) > DEFAULT


# -- how many results come together ----------------------------------------------------------------------------------


def test_quick_results_are_sent_together_and_none_is_kept_without_work() -> None:
    theirs, ours = Pipe()
    with theirs, ours:
        outbox = Outbox(ours)
        for _ in range(IN_A_ROW):
            outbox.put(result(time.perf_counter()), more=True)
        outbox.put(result(time.perf_counter()), more=False)
        found = sizes(theirs)
        assert sum(found) == IN_A_ROW + 1
        assert found[: IN_A_ROW - 1] == [1] * (IN_A_ROW - 1)


@pytest.mark.parametrize("case", ["slow", "error", "large", "late"])
def test_a_result_does_not_wait(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    # The thread never looks.
    clock = SimpleNamespace(perf_counter=lambda: now, sleep=lambda seconds: threading.Event().wait())
    monkeypatch.setattr("headrace.workers.processes.outbox.time", clock)
    theirs, ours = Pipe()
    with theirs, ours:
        outbox = Outbox(ours)
        for _ in range(IN_A_ROW):
            outbox.put(result(now), more=True)
        assert sum(sizes(theirs)) == IN_A_ROW - 1
        outbox.put(result(now), more=True)
        assert sizes(theirs) == []
        last = {
            "slow": result(now - 2 * QUICK),
            "error": result(now, status="error"),
            "large": result(now, header=bytes(INLINE)),
            "late": result(now + 2 * LONGEST),
        }[case]
        if case == "late":
            now += 2 * LONGEST
        outbox.put(last, more=True)
        assert sizes(theirs) == [3]


class Asking(Rows):
    """A sample in the middle of quick ones waits until the loop has got the one before it."""

    def __init__(self, got: Any) -> None:
        self.got = got

    def __getitem__(self, index: int) -> Any:
        if index == LENGTH // 2:
            assert self.got.wait(60)
        return super().__getitem__(index)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("options", [{}, {"prefetch_factor": 50}])
def test_a_sample_may_wait_for_what_the_loop_does_with_the_one_before_it(options: dict[str, Any]) -> None:
    got = torch.multiprocessing.get_context("fork").Event()
    delivered = []
    for number, _ in headrace.DataLoader(Asking(got), 1, num_workers=1, **options):
        delivered.append(int(number))
        if int(number) == LENGTH // 2 - 1:
            got.set()
    assert delivered == list(range(LENGTH))


def test_results_that_were_read_are_not_lost_where_a_signal_handler_raises() -> None:
    loader = headrace.DataLoader(Rows(), 1, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    pool = loader._iterator.executor.pool
    came = pool.workers[0].came
    while len(came) < 2:
        came.extend(unpacked(pool.workers[0].pipe.recv_bytes()))
    waiting = len(came)
    handed_on = pool.receive(None)
    next(handed_on)
    handed_on.close()
    assert len(came) == waiting - 1


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*cannot say where it was")
def test_a_worker_with_two_streams_of_which_one_ends_early() -> None:
    """It passes over tasks of the one that has ended, and keeps no result back behind them."""
    loader = headrace.DataLoader(Uneven(), 1, num_workers=2)
    batches = iter(loader)
    got = [int(next(batches)) for _ in range(10)]
    other = headrace.DataLoader(Uneven(), 1, num_workers=1, prefetch_factor=60)
    other.load_state_dict(loader.state_dict())
    got += [int(batch) for batch in other]
    assert sorted(got) == [*range(40), *range(1000, 1069)]


# -- what may go wrong meanwhile -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
def test_a_worker_that_dies_with_results_that_were_not_sent(tmp_path: Path, seed: int | None) -> None:
    loader = headrace.DataLoader(Dying(tmp_path / "mark"), 1, num_workers=2, seed=seed)
    assert [int(number) for number, _ in loader] == list(range(LENGTH))
    assert (tmp_path / "mark").exists()
    assert loader.faults.restarts == 1


def test_an_epoch_that_is_left_and_begun_anew() -> None:
    loader = headrace.DataLoader(Rows(), 1, num_workers=2, persistent_workers=True)
    for _ in range(3):
        for number, (got, _) in enumerate(loader):
            assert int(got) == number
            if number == 100:
                break
    assert [int(number) for number, _ in loader] == list(range(LENGTH))


def test_a_state_in_mid_epoch_with_many_tasks_out() -> None:
    loader = headrace.DataLoader(Rows(), 4, num_workers=2, shuffle=True, seed=7)
    batches = iter(loader)
    got = [next(batches)[0] for _ in range(60)]
    other = headrace.DataLoader(Rows(), 4, num_workers=1, shuffle=True, seed=7)
    other.load_state_dict(loader.state_dict())
    got += [number for number, _ in other]
    whole = [number for number, _ in headrace.DataLoader(Rows(), 4, shuffle=True, seed=7)]
    assert torch.equal(torch.cat(got), torch.cat(whole))


def test_a_slow_sample_among_quick_ones() -> None:
    loader = headrace.DataLoader(Pausing(), 1, num_workers=2)
    assert [int(number) for number, _ in loader] == list(range(LENGTH))


def test_messages_behind_the_end_of_a_stream_do_not_hold_up_the_next_epoch(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    loader = headrace.DataLoader(
        EndsLate(3 * UNREAD, gate), batch_size=1, num_workers=1, prefetch_factor=4 * UNREAD, persistent_workers=True
    )
    for _ in range(3):
        iterator = iter(loader)
        numbers = []
        for batch in itertools.islice(iterator, 3 * UNREAD):
            numbers.append(int(batch))
            iterator.executor.flush()  # a message, which the worker reads when the stream has ended
        gate.write_text("open")
        assert next(iterator, None) is None
        assert numbers == list(range(3 * UNREAD))


def test_messages_that_only_take_tasks_back_do_not_hold_up_a_worker() -> None:
    loader = headrace.DataLoader(Rows(), batch_size=100, num_workers=1, persistent_workers=True)
    expected = [batch for batch, _ in headrace.DataLoader(Rows(), batch_size=100)]
    for number in range(3):
        iterator = iter(loader)
        assert all(map(torch.equal, expected, (batch for batch, _ in iterator)))
        pool = iterator.executor.pool
        for task in range(3 * UNREAD):
            pool.recall(0, task)
            pool.flush(number)
