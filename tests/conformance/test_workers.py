"""The life of worker processes: how they start, what they keep, when they end."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .datasets import Gated, Inner, Numbers, PerWorkerStream, Witness, refuse_to_start, tag_dataset
from .running import (
    FORK,
    failure_of,
    forked,
    forked_only,
    is_running,
    numbers,
    processes_only,
    told,
    with_and_without_workers,
)

pytestmark = processes_only


def column(batches: Any, name: str) -> list[Any]:
    """One entry of all samples of a `Witness`."""
    return [value for batch in batches for value in batch[name].tolist()]


def pids(batches: Any) -> set[int]:
    return set(column(batches, "pid"))


@forked_only
def test_samples_are_made_in_daemonic_children_of_this_process(Loader: Any) -> None:
    batches = list(Loader(Witness(8), batch_size=2, **forked(2)))
    here = multiprocessing.current_process().pid
    assert len(pids(batches) - {here}) == 2
    assert set(column(batches, "parent_pid")) == {here}
    assert set(column(batches, "daemon")) == {True}


def test_a_worker_computes_with_one_thread(Loader: Any) -> None:
    assert set(column(Loader(Witness(4), **forked(2)), "threads")) == {1}


def test_without_workers_samples_are_made_in_this_process(Loader: Any) -> None:
    assert pids(Loader(Witness(4))) == {multiprocessing.current_process().pid}


def test_the_init_function_runs_once_in_each_worker_before_its_first_sample(Loader: Any) -> None:
    batches = list(Loader(Witness(8), batch_size=2, worker_init_fn=tag_dataset, **forked(2)))
    assert column(batches, "tag") == column(batches, "worker") == [0, 0, 1, 1, 0, 0, 1, 1]


def test_the_init_function_runs_before_a_stream_is_asked_for_its_iterator(Loader: Any) -> None:
    loader = Loader(PerWorkerStream(9, 9), batch_size=None, worker_init_fn=one_item_each, **forked(2))
    assert list(loader) == [0, 100]


def one_item_each(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.lengths = (1, 1)


def test_the_init_function_is_not_called_without_workers(Loader: Any) -> None:
    assert numbers(Loader(Numbers(2), worker_init_fn=refuse_to_start)) == [[0], [1]]


def test_an_exception_of_the_init_function_comes_with_the_first_batch(Loader: Any) -> None:
    iterator = iter(Loader(Numbers(8), worker_init_fn=refuse_to_start, **forked(2)))
    text = told(failure_of(ValueError, lambda: next(iterator)))
    assert text.startswith("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback")
    assert "ValueError: worker 0 has no licence" in text.splitlines()
    text = told(failure_of(ValueError, lambda: next(iterator)))
    assert text.startswith("Caught ValueError in DataLoader worker process 1.\n")


def test_what_a_worker_changes_in_its_dataset_is_not_seen_here(Loader: Any) -> None:
    dataset = Witness(4)
    assert column(Loader(dataset, **forked(2)), "seen") == [1, 1, 2, 2]
    assert dataset.seen == 0


def test_each_epoch_has_new_workers(Loader: Any) -> None:
    loader = Loader(Witness(4), **forked(2))
    first, second = pids(loader), pids(loader)
    assert (2, 2, set()) == (len(first), len(second), first & second)


def test_persistent_workers_stay_for_all_epochs(Loader: Any) -> None:
    loader = Loader(Witness(4), persistent_workers=True, **forked(2))
    epochs = [list(loader) for _ in range(3)]
    assert pids(epochs[0]) == pids(epochs[1]) == pids(epochs[2])
    assert [column(epoch, "seen") for epoch in epochs] == [[1, 1, 2, 2], [3, 3, 4, 4], [5, 5, 6, 6]]


def test_persistent_workers_run_the_init_function_once(Loader: Any) -> None:
    loader = Loader(Numbers(2), worker_init_fn=count_starts, persistent_workers=True, **forked(1))
    loader.collate_fn = starts_so_far
    assert [list(loader) for _ in range(2)] == [[1, 1], [1, 1]]


starts = 0


def count_starts(worker: int) -> None:
    global starts
    starts += 1


def starts_so_far(samples: list[Any]) -> int:
    return starts


def test_a_persistent_loader_has_one_iterator(Loader: Any) -> None:
    loader = Loader(Numbers(4), persistent_workers=True, **forked(2))
    iterator = iter(loader)
    assert len(list(iterator)) == 4
    assert iterator is iter(loader)
    assert numbers(iterator) == [[0], [1], [2], [3]]


def test_a_half_used_persistent_iterator_is_started_again(Loader: Any) -> None:
    loader = Loader(Numbers(12), batch_size=2, persistent_workers=True, **forked(2))
    iterator = iter(loader)
    assert numbers([next(iterator), next(iterator), next(iterator)]) == [[0, 1], [2, 3], [4, 5]]
    assert iterator is iter(loader)
    assert numbers(iterator) == [[start, start + 1] for start in range(0, 12, 2)]


def test_an_exhausted_persistent_iterator_stays_so_until_the_next_epoch(Loader: Any) -> None:
    loader = Loader(Numbers(3), persistent_workers=True, **forked(2))
    iterator = iter(loader)
    assert numbers(iterator) == [[0], [1], [2]]
    assert next(iterator, None) is None
    assert numbers(loader) == [[0], [1], [2]]


def test_a_change_of_the_dataset_is_seen_by_new_workers(Loader: Any) -> None:
    dataset = [1, 2, 3, 4]
    loader = Loader(dataset, batch_size=2, **forked(2))
    first = numbers(loader)
    dataset[:] = [5, 6, 7, 8]
    assert [first, numbers(loader)] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_a_change_of_the_dataset_is_not_seen_by_persistent_workers(Loader: Any) -> None:
    dataset = [1, 2, 3, 4]
    loader = Loader(dataset, batch_size=2, persistent_workers=True, **forked(2))
    first = numbers(loader)
    dataset[:] = [5, 6, 7, 8]
    assert [first, numbers(loader)] == [[[1, 2], [3, 4]]] * 2


@with_and_without_workers
def test_several_iterators_of_one_loader_do_not_disturb_each_other(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(6), batch_size=2, **forked(num_workers))
    pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert [([start, start + 1],) * 2 for start in (0, 2, 4)] == pairs


def test_several_iterators_have_workers_of_their_own(Loader: Any) -> None:
    loader = Loader(Witness(4), **forked(2))
    one, other = iter(loader), iter(loader)
    assert set() == pids(one) & pids(other)


def test_two_persistent_loaders_do_not_disturb_each_other(Loader: Any) -> None:
    loaders = [Loader(Numbers(size), persistent_workers=True, **forked(1)) for size in (3, 4)]
    for _ in range(2):
        merged = [(int(one), int(other)) for one, other in zip(*loaders, strict=False)]
        assert merged == [(0, 0), (1, 1), (2, 2)]


def test_at_the_end_of_an_epoch_the_workers_have_ended(Loader: Any, children: Any) -> None:
    iterator = iter(Loader(Witness(4), **forked(2)))
    workers = pids(iterator)
    assert next(iterator, None) is None
    assert [is_running(pid) for pid in workers] == [False, False]
    assert children() == []


def test_a_loop_that_is_left_half_way_leaves_no_worker_behind(Loader: Any, children: Any) -> None:
    workers = set()
    for number, batch in enumerate(Loader(Witness(100), **forked(2))):
        workers |= set(batch["pid"].tolist())
        if number == 5:
            break
    assert [is_running(pid) for pid in workers] == [False, False]
    assert children() == []


def test_a_function_left_by_an_exception_leaves_no_worker_behind(Loader: Any, children: Any) -> None:
    def train() -> None:
        for _ in Loader(Numbers(100), **forked(2)):
            raise ArithmeticError("the loss is not a number")

    assert str(failure_of(ArithmeticError, train)) == "the loss is not a number"
    assert children() == []


@forked_only
def test_an_iterator_that_was_never_used_leaves_no_worker_behind(Loader: Any, children: Any) -> None:
    iterator = iter(Loader(Numbers(100), **forked(2)))
    assert len(children()) == 2
    del iterator
    assert children() == []


def test_persistent_workers_wait_between_epochs_and_end_with_their_loader(Loader: Any, children: Any) -> None:
    loader = Loader(Witness(4), persistent_workers=True, **forked(2))
    workers = pids(loader)
    assert [is_running(pid) for pid in workers] == [True, True]
    del loader
    assert [is_running(pid) for pid in workers] == [False, False]
    assert children() == []


def test_workers_end_with_their_loader_while_later_ones_go_on(Loader: Any, children: Any) -> None:
    # The second pair of workers was forked while the pipes of the first pair were open
    first = Loader(Witness(4), persistent_workers=True, **forked(2))
    early = pids(first)
    second = Loader(Witness(4), persistent_workers=True, **forked(2))
    late = pids(second)
    del first
    assert [False, False] == [is_running(pid) for pid in early]
    assert [True, True] == [is_running(pid) for pid in late]
    assert late == pids(second)


@forked_only
def test_an_interrupt_while_waiting_loses_no_batch(Loader: Any) -> None:
    gate = FORK.Event()
    iterator = iter(Loader(Gated(4, gate, held=[1]), **forked(2)))
    seen = [next(iterator).tolist()]
    previous = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(0.3, signal.pthread_kill, [main_thread, signal.SIGUSR1])
    timer.start()
    try:
        failure_of(KeyboardInterrupt, iterator.__next__)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)
        gate.set()
    assert [[0], [1], [2], [3]] == seen + numbers(iterator)


def test_a_loader_without_workers_can_run_inside_a_worker(Loader: Any) -> None:
    loader = Loader(Inner(4, Loader), batch_size=None, **forked(2))
    assert numbers(loader) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_worker_cannot_have_workers(Loader: Any) -> None:
    loader = Loader(Inner(4, Loader, **forked(1)), batch_size=None, **forked(1))
    text = told(failure_of(AssertionError, lambda: next(iter(loader))))
    assert text.startswith("Caught AssertionError in DataLoader worker process 0.\n")
    assert "daemonic processes are not allowed to have children" in text


def test_a_loader_can_be_used_in_another_thread(Loader: Any) -> None:
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(numbers(Loader(Numbers(4), **forked(2)))))
    thread.start()
    thread.join(60)
    assert seen == [[0], [1], [2], [3]]


def test_an_iterator_can_be_handed_to_another_thread(Loader: Any) -> None:
    iterator: Iterator[torch.Tensor] = iter(Loader(Numbers(6), **forked(2)))
    first = next(iterator).tolist()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(numbers(iterator)))
    thread.start()
    thread.join(60)
    assert [first, seen] == [[0], [[1], [2], [3], [4], [5]]]


def test_more_workers_than_processors_are_warned_of(Loader: Any) -> None:
    processors = len(os.sched_getaffinity(0))
    text = (
        f"This DataLoader will create {processors + 1} worker processes in total. Our suggested max number of "
        f"worker in current system is {processors}, which is smaller than what this DataLoader is going to "
        "create. Please be aware that excessive worker creation might get DataLoader running slow or even freeze, "
        "lower the worker number to avoid potential slowness/freeze if necessary."
    )
    with pytest.warns(UserWarning) as caught:
        loader = Loader(Numbers(1), **forked(processors + 1))
    assert [text] == [str(warning.message) for warning in caught if warning.category is UserWarning]
    with pytest.warns(UserWarning) as caught:
        assert numbers(loader) == [[0]]
    assert [text] == [str(warning.message) for warning in caught if warning.category is UserWarning]


def test_as_many_workers_as_processors_are_not_warned_of(Loader: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Loader(Numbers(1), num_workers=len(os.sched_getaffinity(0)))
    assert caught == []


def test_more_workers_than_batches_do_no_harm(Loader: Any) -> None:
    assert numbers(Loader(Numbers(1), **forked(2))) == [[0]]
