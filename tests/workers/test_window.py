"""The in-flight window against torch's rules, in plain numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Sampler

import headrace
from headrace.workers.window import Window


def prime(window: Window[int], tasks: int) -> list[int]:
    """Sends up to `tasks` tasks; returns the worker of each."""
    workers = []
    for _ in range(tasks):
        worker = window.choose()
        if worker is None:
            break
        window.send(worker)
        workers.append(worker)
    return workers


def test_task_k_goes_to_worker_k_modulo_n() -> None:
    assert prime(Window(3, 6, in_order=True), 6) == [0, 1, 2, 0, 1, 2]


@pytest.mark.thorough
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_results_are_delivered_in_order_however_they_arrive(workers: int, prefetch: int, data: st.DataObject) -> None:
    window: Window[int] = Window(workers, workers * prefetch, in_order=True)
    pending = list(range(len(prime(window, window.limit))))
    delivered = []
    while not window.finished:
        ready = window.deliverable()
        if ready is not None:
            task, worker, result = ready
            assert (task, worker) == (result, result % workers)
            delivered.append(result)
            if len(delivered) + len(pending) < 20:
                pending.append(window.send(window.choose() or 0))
            continue
        task = data.draw(st.sampled_from(pending))
        pending.remove(task)
        window.arrive(task, task)
    assert delivered == list(range(len(delivered)))
    assert pending == []


@given(st.permutations(range(6)))
def test_without_order_results_are_delivered_as_they_arrive(arrivals: list[int]) -> None:
    window: Window[int] = Window(2, 6, in_order=False)
    prime(window, 6)
    for task in arrivals:
        window.arrive(task, task)
    ready = [window.deliverable() for _ in arrivals]
    assert [result for _, _, result in ready if result is not None] == arrivals  # type: ignore[misc]
    assert window.finished


def test_without_order_a_worker_gets_no_more_than_its_share() -> None:
    window: Window[int] = Window(2, 4, in_order=False)
    assert prime(window, 4) == [0, 1, 0, 1]
    window.arrive(1, 1)
    assert window.deliverable() == (1, 1, 1)
    assert prime(window, 3) == [1]


def test_an_exhausted_worker_drops_out_and_its_tasks_with_it() -> None:
    window: Window[int] = Window(2, 4, in_order=True)
    prime(window, 4)
    window.arrive(0, 0)
    window.exhaust(2)
    assert window.deliverable() == (0, 0, 0)
    assert window.deliverable() is None
    window.arrive(1, 1)
    assert window.deliverable() == (1, 1, 1)
    assert prime(window, 2) == [1, 1]
    assert window.deliverable() is None
    window.arrive(3, 3)
    assert window.deliverable() == (3, 1, 3)


def test_the_epoch_ends_when_every_worker_is_exhausted() -> None:
    window: Window[int] = Window(2, 4, in_order=True)
    prime(window, 4)
    window.exhaust(0)
    assert not window.finished
    window.exhaust(1)
    assert window.deliverable() is None
    assert window.finished
    assert window.choose() is None


def test_results_that_came_before_the_end_of_a_worker_are_delivered() -> None:
    window: Window[int] = Window(1, 3, in_order=True)
    prime(window, 3)
    window.arrive(0, 0)
    window.arrive(1, 1)
    window.exhaust(2)
    assert [window.deliverable(), window.deliverable(), window.deliverable()] == [(0, 0, 0), (1, 0, 1), None]
    assert window.finished


def test_after_a_resume_the_round_robin_begins_where_it_was() -> None:
    assert prime(Window(3, 6, in_order=True, first=2), 4) == [2, 0, 1, 2]


def test_a_free_task_goes_to_the_replica_with_the_fewest() -> None:
    window: Window[int] = Window(2, 8, in_order=True, free=True)
    assert prime(window, 8) == [0, 1, 0, 1]
    window.arrive(1, 1)
    window.arrive(3, 3)
    assert prime(window, 8) == [1, 1]
    assert window.deliverable() is None


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_free_tasks_are_delivered_in_order_within_the_limit(replicas: int, prefetch: int, data: st.DataObject) -> None:
    window: Window[int] = Window(replicas, replicas * prefetch, in_order=True, free=True)
    sent, delivered, making = 0, [], []
    while len(delivered) < 30:
        while sent < 30 and (replica := window.choose()) is not None:
            making.append(window.send(replica))
            sent += 1
        assert sent - len(delivered) <= window.limit
        if (ready := window.deliverable()) is not None:
            delivered.append(ready[0])
            continue
        task = data.draw(st.sampled_from(making))
        making.remove(task)
        window.arrive(task, task)
    assert delivered == list(range(30))


def test_only_open_replicas_are_given_free_tasks() -> None:
    window: Window[int] = Window(8, 2, in_order=True, free=True)
    window.open_replicas = 1
    assert prime(window, 8) == [0, 0]
    window.limit, window.open_replicas = 6, 3
    assert prime(window, 8) == [1, 2, 1, 2]
    assert window.outstanding == 6
    window.limit = window.open_replicas = 0
    assert prime(window, 8) == []
    for task in range(6):
        window.arrive(task, task)
    assert [window.deliverable() for _ in range(7)] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 1, 4), (5, 2, 5), None,
    ]  # fmt: skip
    assert window.finished
    assert window.outstanding == 0
    window.limit, window.open_replicas = 4, 2
    assert prime(window, 8) == [0, 1, 0, 1]


def test_a_lower_limit_takes_nothing_back_and_gives_nothing_out() -> None:
    window: Window[int] = Window(4, 8, in_order=True, free=True)
    assert len(prime(window, 8)) == 8
    window.limit = 3
    for task in range(8):
        window.arrive(task, task)
        assert window.deliverable() == (task, task % 4, task)
        assert (window.choose() is None) == (window.outstanding >= 3)


@pytest.mark.thorough
@given(st.data())
def test_whatever_replicas_are_open_batches_come_in_order_within_the_limit(data: st.DataObject) -> None:
    window: Window[int] = Window(6, 2, in_order=True, free=True)
    sent, delivered, making = 0, [], []
    while len(delivered) < 25:
        if data.draw(st.booleans()):
            window.open_replicas = data.draw(st.integers(0, 6))
            window.limit = window.open_replicas * data.draw(st.integers(1, 4))
        if not making and window.open_replicas == 0 and window.outstanding == 0:
            window.open_replicas, window.limit = 1, 1
        while sent < 25 and (replica := window.choose()) is not None:
            assert replica < window.open_replicas
            assert window.outstanding < window.limit
            making.append(window.send(replica))
            sent += 1
        if (ready := window.deliverable()) is not None:
            delivered.append(ready[0])
        elif making:
            task = data.draw(st.sampled_from(making))
            making.remove(task)
            window.arrive(task, task)
    assert delivered == list(range(25))
    assert window.outstanding == 0


@given(
    replicas=st.integers(1, 5),
    limit=st.integers(1, 12),
    moves=st.lists(st.tuples(st.sampled_from(["down", "up", "arrive", "send"]), st.integers(0, 4)), max_size=60),
)
def test_whoever_goes_and_comes_every_task_is_delivered_once_and_in_order(
    replicas: int, limit: int, moves: list[tuple[str, int]]
) -> None:
    window: Window[int] = Window(replicas, limit, True, free=True)
    delivered: list[int] = []
    sent = 0

    def deliver() -> None:
        while (delivery := window.deliverable()) is not None:
            delivered.append(delivery[0])

    def move_those_that_wait() -> None:
        for task in window.tasks_that_wait():
            if window.some_are_up:
                replica = window.least_busy()
                assert replica is not None
                window.move(task, replica)

    for what, number in moves:
        if what == "down":
            window.set_down(number % replicas)
            move_those_that_wait()
        elif what == "up":
            window.set_up(number % replicas)
            move_those_that_wait()
        elif what == "send" and (replica := window.choose()) is not None:
            window.send(replica)
            sent += 1
        elif what == "arrive" and (waiting := list(window.unanswered())):
            task = waiting[number % len(waiting)]
            window.arrive(task, task)
            deliver()

    for task in list(window.unanswered()):
        window.arrive(task, task)
    deliver()
    assert delivered == list(range(sent))
    assert window.outstanding == 0


# -- a result that is late -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(st.integers(2, 5), st.integers(1, 3), st.integers(0, 20), st.booleans(), st.data())
def test_behind_a_late_result_others_go_on_within_the_spare_number(
    workers: int, prefetch: int, spare: int, free: bool, data: st.DataObject
) -> None:
    window: Window[int] = Window(workers, workers * prefetch, in_order=True, free=free, ahead=prefetch)
    window.spare = spare
    out: set[int] = set()
    delivered: list[int] = []
    total = 60
    while len(delivered) < total:
        while len(delivered) + window.outstanding < total and window.has_room:
            replica = window.choose()
            if replica is None:
                break
            assert window.outstanding < window.limit or window.outstanding - len(out) < spare
            out.add(window.send(replica))
        late = len(delivered)
        others = sorted(out - {late})
        if others and data.draw(st.booleans()):
            task = data.draw(st.sampled_from(others))
        else:
            task = late
        out.remove(task)
        window.arrive(task, task)
        while (ready := window.deliverable()) is not None:
            delivered.append(ready[2])
    assert delivered == list(range(total))


@pytest.mark.parametrize("free", [True, False])
def test_no_replica_stands_still_behind_a_late_result(free: bool) -> None:
    window: Window[int] = Window(2, 4, in_order=True, free=free)
    window.spare = 10
    for task in prime(window, 4):
        assert task in (0, 1)
    assert not window.has_room
    # The other replica has done what it had; the first one is still at task 0.
    for task in (1, 3):
        window.arrive(task, task)
    assert window.has_room
    window.spare = 2
    assert not window.has_room


def test_what_a_slow_loop_has_not_taken_yet_leaves_no_room() -> None:
    window: Window[int] = Window(2, 4, in_order=True)
    window.spare = 10
    prime(window, 4)
    for task in range(4):
        window.arrive(task, task)
    assert not window.has_room


@pytest.mark.parametrize("seed", [None, 3])
def test_workers_go_on_behind_a_sample_that_is_late(tmp_path: Path, seed: int | None) -> None:
    """The first sample waits until the last one was made, far behind what `prefetch_factor` allows."""
    loader = headrace.DataLoader(Late(tmp_path / "made"), 1, num_workers=2, prefetch_factor=3, seed=seed)
    assert [int(key) for key in loader] == list(range(Late.length))


def test_a_sampler_of_the_users_is_asked_no_further_ahead() -> None:
    asked: list[int] = []

    class Noting(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for key in range(40):
                asked.append(key)
                yield key

    batches = iter(headrace.DataLoader(Slow(), 1, sampler=Noting(), num_workers=2, prefetch_factor=2))
    next(batches)
    assert len(asked) == 5


class Slow(Dataset[int]):
    def __getitem__(self, key: int) -> int:
        if key == 0:
            time.sleep(0.3)
        return key


class Late(Dataset[int]):
    """The first sample is there when the last one has been made by the other worker."""

    length = 40

    def __init__(self, made: Path) -> None:
        self.made = made

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        if key == self.length - 1:
            self.made.touch()
        if key == 0:
            while not self.made.exists():
                time.sleep(0.01)
        return key
