"""Batches that several workers make together."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

import headrace
from headrace.batches.index import Positioned
from headrace.core.process.activity import LOAD
from headrace.epoch.deferral import Deferral
from headrace.epoch.slow_samples import SlowSamples
from headrace.shared_memory.codec import EncodedBatch, encode
from headrace.telemetry.stopwatch import NO_TIMES
from headrace.workers.dispatch import Dispatcher
from headrace.workers.processes.arrived import Arrived, join_arrived
from headrace.workers.stragglers.early import DrawnAhead
from headrace.workers.stragglers.parts import Parts

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WAITING = 30.0
"""Seconds for which a sample waits for another one; then it raises."""


class Work:
    """What one simulated worker has: its tasks, and how far it is with the first of them."""

    def __init__(self) -> None:
        self.tasks: deque[tuple[int, Positioned]] = deque()
        self.made = 0
        self.stop: tuple[int, int] | None = None


class Workers:
    """Simulated workers, which are told things sooner or later. The carrier of a dispatcher, and its pool."""

    def __init__(self, count: int, draw: Callable[[int], int]) -> None:
        self.work = [Work() for _ in range(count)]
        self.draw = draw
        self.makes: Callable[[int], Any] = lambda key: key
        self.bad: set[int] = set()

    def submit(self, worker: int, task: int, replica: int, index: Any) -> None:
        self.work[worker].tasks.append((task, index))

    def withdraw(self, worker: int, task: int) -> bool:
        return False

    def recall(self, worker: int, task: int) -> None:
        work = self.work[worker]
        if self.draw(2):  # the message may come too late
            begun = 1 if work.made else 0
            work.tasks = deque(one for place, one in enumerate(work.tasks) if place < begun or one[0] != task)

    def doing(self, worker: int) -> tuple[int, int, int]:
        work = self.work[worker]
        if not work.tasks or not work.made:
            return -1, 0, -1
        return work.tasks[0][0], LOAD, work.made - 1

    def stop_at(self, worker: int, task: int, row: int) -> None:
        self.work[worker].stop = task, row

    def flush(self, least: int = 1) -> None:
        pass

    def close(self) -> None:
        pass

    def step(self, dispatcher: Dispatcher[Any]) -> None:
        """One worker makes one sample, or sends what it has made."""
        busy = [work for work in self.work if work.tasks]
        work = busy[self.draw(len(busy))]
        number, index = work.tasks[0]
        told = work.stop is not None and work.stop[0] == number and work.made >= work.stop[1]
        stops = told and self.draw(2) == 1  # it looks before or after it was told
        if not stops and work.made < len(index.index):
            work.made += 1
            return

        work.tasks.popleft()
        keys = index.index[: work.made]
        rows = work.made if work.made < len(index.index) else -1
        work.made = 0
        status, payload = "batch", torch.tensor([self.makes(key) for key in keys])
        if self.bad & set(keys):
            status, rows = "error", -1
        slow = [(place, 1.0) for place, key in enumerate(keys) if key % 5 == 0] if len(keys) > 1 else []
        dispatcher.file(number, arrived(status, (payload, None, ()), rows, slow, len(keys)), self)


def arrived(status: str, payload: Any, rows: int, slow: Sequence[tuple[int, float]], count: int) -> Arrived:
    """Returns a result as it comes from a worker, with all of it in its header."""
    encoded: EncodedBatch = encode(payload, LocalMemoryWriter())
    times = NO_TIMES._replace(begun=0.0, collated=0.1 * count)
    region: Any = SimpleNamespace(hand_over=lambda slots: None)
    return Arrived(status, encoded.header, [], [], 0, times, 8, 0.0, region, [], rows, slow)


class LocalMemoryWriter:
    """A writer's memory in which nothing finds a place: small batches lie in their headers."""

    gathered_below = 0

    def find(self, address: int) -> None:
        return None


class Epoch:
    """Batches of `size` keys, `count` of them, as a dispatcher sees an epoch."""

    is_live = False
    is_map = True
    any_replica_will_do = True
    in_order = True
    keeps_workers = True
    ends: dict[int, Any] = {}
    next_replica = 0

    def __init__(
        self, count: int, size: int, workers: int, samples: SlowSamples, deferral: Deferral | None = None
    ) -> None:
        self.deferral = deferral
        self.batches = [
            Positioned(list(range(first, first + size)), range(first, first + size))
            for first in range(0, count * size, size)
        ]
        self.left = enumerate(self.batches)
        self.slow_samples = samples
        self.size = size
        self.record = SimpleNamespace(replicas=workers)
        self.spec = SimpleNamespace(in_order=True, persistent_workers=True)

    def take(self) -> tuple[int, Any]:
        number, index = next(self.left)
        if self.deferral is not None:
            index = self.deferral.take(number, index)
        return number, index

    def is_at_end(self) -> bool:
        return False

    def leaves(self, number: int, replica: int, state: Any, losses: Any) -> None:
        pass


def sharing(epoch: Any, pool: Workers, spare_bytes: int, *, draws_early: bool) -> tuple[Dispatcher[Any], Parts]:
    """Returns a dispatcher whose workers make batches together. Its clock stands still: `look` says what is late."""
    workers = epoch.record.replicas
    dispatcher: Dispatcher[Any] = Dispatcher(epoch, workers, 2 * workers, lambda: 1.0, spare_bytes=spare_bytes)
    parts = Parts(
        dispatcher.tasks,
        DrawnAhead(epoch.take, epoch.slow_samples),
        dispatcher.lateness,
        pool,
        join_arrived,
        draws_early=draws_early,
        batch_size=epoch.size,
    )
    dispatcher.share(parts)
    return dispatcher, parts


def check_epoch(draw: Callable[[int], int], workers: int, count: int, size: int, known: bool, bad: set[int]) -> None:
    """Checks that all batches come in order, unless late ones may come later, with workers that `draw` plays.

    known: whether a sample is known to be slow. bad: keys of samples that raise.
    """
    pool = Workers(workers, draw)
    pool.bad = bad
    first_float = draw(4 * count * size)
    defers = draw(2) == 1
    pool.makes = lambda key: float(key) if key >= first_float else key
    samples = SlowSamples()
    samples.note(range(8), 1.0, [])
    if known:
        samples.note([5, 6, 7], 1.1, [(0, 1.0)])
    deferral = Deferral(allowed=True, batched=True) if defers else None
    epoch: Any = Epoch(count, size, workers, samples, deferral)
    spare = (8, 64, 1 << 20)[draw(3)]
    dispatcher, parts = sharing(epoch, pool, spare, draws_early=known)

    carrier: Any = pool

    def collect() -> None:
        pool.step(dispatcher)
        if pool.draw(2):  # nothing more has come for a while
            dispatcher.look(carrier)

    carrier.collect = collect
    batches = []
    dispatcher.prime(carrier)
    while True:
        try:
            task, _, result = dispatcher.next_delivery(carrier, 1)
        except StopIteration:
            break
        dispatcher.leaves(task, 0, None)
        batches.append((result.status, result.opened()[0].tolist()))
    expected = [(("error" if pool.bad & set(index.index) else "batch"), index.index) for index in epoch.batches]
    if defers:
        batches.sort(key=lambda one: one[1][:1] if one[0] == "batch" else [])
        expected.sort(key=lambda one: one[1][:1] if one[0] == "batch" else [])
    assert [status for status, _ in batches] == [status for status, _ in expected]
    assert [one for one in batches if one[0] == "batch"] == [one for one in expected if one[0] == "batch"]
    assert not parts._cuts
    assert all(dispatcher.window.making(replica) == 0 for replica in range(workers))


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(1, 9), st.integers(1, 6), st.booleans(), st.data())
def test_all_batches_come_whoever_makes_them(
    workers: int, count: int, size: int, known: bool, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, count * size), max_size=2))
    check_epoch(lambda most: data.draw(st.integers(0, most - 1)), workers, count, size, known, bad)


def test_a_first_batch_that_is_begun_early_may_raise() -> None:
    """A sample of it is known to be slow, so that it is cut two times."""
    for seed in range(300):
        chance = random.Random(seed)
        check_epoch(chance.randrange, chance.randint(2, 4), chance.randint(1, 4), 6, True, {chance.randrange(6)})


def test_slow_samples_do_not_hold_up_the_first_batch() -> None:
    samples = SlowSamples()
    samples.note(range(8), 1.0, [])
    samples.note([20, 21, 22], 1.1, [(0, 1.0)])
    pool = Workers(4, lambda most: 0)
    carrier: Any = pool
    dispatcher, _ = sharing(Epoch(9, 8, 4, samples), pool, 64, draws_early=True)
    dispatcher.prime(carrier)
    assert [dispatcher.tasks.task_of(work.tasks[0][0]) for work in pool.work] == [0] * 4


class Gates:
    """Events that samples wait for and set, shared with worker processes."""

    def __init__(self, waits: dict[int, int]) -> None:
        context = multiprocessing.get_context("fork")
        self.waits = waits
        self.events = {key: context.Event() for key in waits.values()}

    def pass_through(self, key: int) -> None:
        """Makes a sample wait for the one that it needs, if it needs one."""
        if key in self.events:
            self.events[key].set()
        if key in self.waits and not self.events[self.waits[key]].wait(WAITING):
            raise TimeoutError(f"sample {key} waited in vain for sample {self.waits[key]}")


class Gated(Dataset[Any]):
    """Samples of 1 ms, some of which wait for others."""

    def __init__(self, length: int, waits: dict[int, int]) -> None:
        self.length = length
        self.gates = Gates(waits)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> tuple[int, torch.Tensor, str]:
        time.sleep(0.001)  # the work of the sample
        self.gates.pass_through(key)
        return key, torch.rand(2), f"sample {key}"


def epochs(dataset: Dataset[Any], count: int = 1, **options: Any) -> list[Any]:
    """Returns the batches of some epochs."""
    loader = headrace.DataLoader(dataset, seed=3, **options)
    return [batch for _ in range(count) for batch in loader]


def same(some: list[Any], others: list[Any]) -> bool:
    """Whether batches of (keys, tensors, texts) are the same."""
    return len(some) == len(others) and all(
        torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]) and one[2] == other[2]
        for one, other in zip(some, others, strict=True)
    )


def test_the_first_batch_is_made_by_all_workers() -> None:
    # Each sample waits for the one in front of it in another part: one worker alone would wait for ever.
    dataset = Gated(16, {0: 2, 4: 6})
    batches = epochs(dataset, batch_size=8, num_workers=4)
    assert same(batches, epochs(Gated(16, {}), batch_size=8))


def test_samples_behind_one_that_is_slow_are_made_by_others() -> None:
    # In the last batch, the first sample waits for the last one.
    dataset = Gated(64, {56: 63})
    batches = epochs(dataset, batch_size=8, num_workers=2)
    assert same(batches, epochs(Gated(64, {}), batch_size=8))


def test_tasks_behind_one_that_is_slow_are_made_by_others() -> None:
    # Sample 8 waits for the last batch but one; its worker holds another task by then.
    dataset = Gated(64, {8: 55})
    batches = epochs(dataset, batch_size=8, num_workers=2)
    assert same(batches, epochs(Gated(64, {}), batch_size=8))


class SlowOne(Dataset[int]):
    """Samples of which the one with key `slow` takes long. Those from `gate` on wait until it is begun, if told to.

    On a busy machine all samples take long. So this one takes twenty times as long as others took in its worker.
    """

    def __init__(self, length: int, slow: int, gate: int) -> None:
        context = multiprocessing.get_context("fork")
        self.length = length
        self.slow = slow
        self.gate = gate
        self.waits = context.Event()
        self.begun = context.Event()
        self.seconds: list[float] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        began = time.perf_counter()
        if key == self.slow:
            self.begun.set()
            time.sleep(20 * statistics.mean(self.seconds))
        elif key >= self.gate and self.waits.is_set() and not self.begun.wait(WAITING):
            raise TimeoutError(f"sample {self.slow} was not begun before sample {key}")
        time.sleep(0.001)
        if key < self.gate and not self.waits.is_set():
            self.seconds.append(time.perf_counter() - began)
        return key


def test_a_sample_that_was_slow_is_begun_early_in_the_next_epoch() -> None:
    dataset = SlowOne(160, slow=150, gate=136)
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True, seed=1)
    known = loader._session.slow_samples
    # Where a machine becomes busier within an epoch, others may have taken as long.
    while dataset.slow not in known:
        assert [key for batch in loader for key in batch.tolist()] == list(range(160))
    # One that waits at the gate would be begun early, too, and hold up what comes behind it.
    for key in range(dataset.slow):
        known.note_alone(key, 0.0)

    dataset.begun.clear()
    dataset.waits.set()
    assert [key for batch in loader for key in batch.tolist()] == list(range(160))


class Mixed(Dataset[Any]):
    """Samples that only make sense together: numbers of two types, and one that raises."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: int) -> float:
        time.sleep(0.001)
        if key == self.bad:
            raise ValueError(f"sample {key} is bad")
        return key if key < 4 else key + 0.5


def test_parts_that_cannot_be_joined_are_made_again_as_one_batch() -> None:
    expected = epochs(Mixed(), batch_size=8)
    found = epochs(Mixed(), batch_size=8, num_workers=4)
    assert [batch.dtype for batch in found] == [batch.dtype for batch in expected]
    assert all(map(torch.equal, found, expected))


def test_the_keys_of_a_batch_may_have_no_order() -> None:
    batches = [{key, key + 1, key + 2, key + 3} for key in range(0, 64, 4)]
    found = epochs(Gated(64, {}), 2, batch_sampler=batches, num_workers=2, persistent_workers=True)
    assert same(found, epochs(Gated(64, {}), 2, batch_sampler=batches))


@pytest.mark.parametrize("bad", [0, 3, 7, 12])
def test_an_error_in_a_part_is_that_of_the_batch(bad: int) -> None:
    with pytest.raises(ValueError, match=f"sample {bad} is bad") as caught:
        epochs(Mixed(bad), batch_size=8, num_workers=4)
    assert f"the sample with key {bad}" in str(caught.value)


class Deadly(Gated):
    """A sample kills its worker, once."""

    def __init__(self, length: int, key: int) -> None:
        super().__init__(length, {})
        self.key = key
        self.died = multiprocessing.get_context("fork").Value("q", 0)

    def __getitem__(self, key: int) -> tuple[int, torch.Tensor, str]:
        if key == self.key and not self.died.value:
            self.died.value = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


@pytest.mark.parametrize("key", [0, 3, 5, 30])
def test_the_part_of_a_worker_that_is_killed_is_made_again(key: int) -> None:
    batches = epochs(Deadly(32, key), batch_size=8, num_workers=3)
    assert same(batches, epochs(Gated(32, {}), batch_size=8))


def test_an_epoch_that_goes_on_from_a_state_has_the_same_batches() -> None:
    expected = epochs(Gated(64, {}), batch_size=8, shuffle=True)
    loader = headrace.DataLoader(Gated(64, {}), batch_size=8, shuffle=True, seed=3, num_workers=4)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    state = loader.state_dict()
    del batches
    again = headrace.DataLoader(Gated(64, {}), batch_size=8, shuffle=True, seed=3, num_workers=3)
    again.load_state_dict(state)
    assert same(first + list(again), expected)
