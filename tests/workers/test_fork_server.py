"""Workers by spawn and forkserver: forks of one helper process, which unpickles the dataset once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from headrace import DataLoader
from headrace.workers.processes.fork_server import fork_servers_exist
from tests.workers.datasets import Photos
from tests.workers.fork_server_data import (
    METHODS,
    Identity,
    ManyShared,
    Notebook,
    Shard,
    Sharing,
    descriptors,
    ends,
    flat,
    fork_server_of,
    greet,
    sums,
)

pytestmark = pytest.mark.skipif(not fork_servers_exist(), reason="needs pidfds and descriptors over sockets")


# -- what an epoch delivers ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@METHODS
def test_epochs_equal_those_without_workers(method: str) -> None:
    inline = DataLoader(Photos(50, side=20), batch_size=8, shuffle=True, seed=3)
    loader = DataLoader(
        Photos(50, side=20), batch_size=8, shuffle=True, seed=3, num_workers=2, multiprocessing_context=method
    )
    for _ in range(2):
        for ours, theirs in zip(loader, inline, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.thorough
@METHODS
def test_the_data_set_is_unpickled_once_for_all_workers_and_epochs(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context=method)
    epochs = [torch.stack([torch.stack(batch) for batch in loader]) for _ in range(3)]
    assert dataset.times_unpickled == 1
    assert torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[0], epochs[2])


@METHODS
def test_a_worker_s_changes_of_its_copy_reach_neither_the_user_nor_the_next_epoch(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        samples = list(loader)
        assert [sample[3] for sample in samples] == list(range(101, 113))
        assert [sample[4] for sample in samples] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert dataset.calls == 0
    assert torch.equal(dataset.tensor, torch.arange(4000))
    assert np.array_equal(dataset.array, np.arange(4000))


@METHODS
def test_the_next_epoch_sees_what_the_user_changed_in_the_data_set(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    seen = [next(iter(loader))[:3]]
    dataset.offset = 5
    seen.append(next(iter(loader))[:3])
    dataset.tensor[0] = 6
    seen.append(next(iter(loader))[:3])
    dataset.array[0] = 7
    seen.append(next(iter(loader))[:3])
    assert seen == [[0, 0, 0], [5, 0, 0], [5, 6, 0], [5, 6, 7]]
    assert dataset.times_unpickled == 4


@METHODS
def test_shared_tensors_locks_values_events_and_queues_work(method: str) -> None:
    dataset = Sharing(multiprocessing.get_context(method))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    for epoch in (1, 2):
        dataset.gate.clear()
        iterator = iter(loader)
        for number in range(8):
            dataset.questions.put(10 * epoch + number)
        dataset.gate.set()
        assert list(iterator) == list(range(8))
        answers = [dataset.answers.get() for _ in range(8)]
        assert sorted(index for index, _ in answers) == list(range(8))
        assert sorted(question for _, question in answers) == list(range(10 * epoch, 10 * epoch + 8))
        assert dataset.seen.tolist() == [epoch] * 8
    assert dataset.total.value == sum(range(10, 18)) + sum(range(20, 28))
    dataset.answers.close()
    dataset.answers.join_thread()


@pytest.mark.thorough
def test_more_shared_tensors_than_descriptors_can_be_passed_work_too() -> None:
    dataset = ManyShared()
    loader = DataLoader(dataset, batch_size=20, num_workers=1, multiprocessing_context="spawn")
    counts = []
    for _ in range(3):
        assert torch.cat(list(loader))[:, 1].tolist() == list(range(len(dataset)))
        gc.collect()
        counts.append(descriptors())
    assert counts[1:] == [counts[1]] * 2


@pytest.mark.quick(method="spawn")
@METHODS
def test_workers_know_themselves_and_draw_the_numbers_of_forked_ones(method: str) -> None:
    def epoch(context: str) -> list[Any]:
        generator = torch.Generator().manual_seed(11)
        loader = DataLoader(
            Identity(), batch_size=None, num_workers=2, worker_init_fn=greet, generator=generator,
            multiprocessing_context=context,
        )  # fmt: skip
        return list(loader)

    ours = epoch(method)
    assert [sample[:-1] for sample in ours] == [sample[:-1] for sample in epoch("fork")]
    assert [sample[1] for sample in ours] == [0, 1] * 4
    assert all(sample[4] and sample[6] == sample[3] for sample in ours)
    assert [sample[5] for sample in ours] == ["worker 0 of 2", "worker 1 of 2"] * 4
    (fork_server,) = {sample[-1] for sample in ours}
    assert fork_server != os.getpid()
    assert get_worker_info() is None


@METHODS
def test_an_iterable_data_set_may_be_split_among_the_workers(method: str) -> None:
    loader = DataLoader(Shard(), batch_size=4, num_workers=2, drop_last=True, multiprocessing_context=method)
    for _ in range(2):
        batches = [batch.tolist() for batch in loader]
        assert batches == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]


@METHODS
def test_a_collate_function_runs_in_the_workers(method: str) -> None:
    loader = DataLoader(
        Photos(16, side=30), batch_size=4, num_workers=2, collate_fn=sums, multiprocessing_context=method
    )
    assert torch.cat(list(loader)).tolist() == [2700.0 * number for number in range(16)]


@METHODS
def test_persistent_workers_stay_from_one_epoch_to_the_next(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    pids, calls = [], []
    for _ in range(3):
        iterator = iter(loader)
        pids.append([process.pid for process in iterator._workers])
        calls.append([sample[4] for sample in iterator][-1])
    assert pids == [pids[0]] * 3
    assert calls == [6, 12, 18]
    assert dataset.times_unpickled == 1


@METHODS
def test_two_loaders_work_at_once_and_have_a_fork_server_each(method: str) -> None:
    loaders = [
        DataLoader(Photos(24, side=9 * scale), batch_size=4, num_workers=1, multiprocessing_context=method)
        for scale in (1, 2)
    ]
    for _ in range(2):
        iterators = [iter(loader) for loader in loaders]
        assert len({fork_server_of(iterator) for iterator in iterators}) == 2
        for number, (small, large) in enumerate(zip(*iterators, strict=True)):
            assert [small[0].shape[2], large[0].shape[2]] == [9, 18]
            assert small[1].tolist() == large[1].tolist() == list(range(4 * number, 4 * number + 4))


@METHODS
def test_a_loader_works_in_threads_that_end(method: str) -> None:
    loader = DataLoader(Photos(16, side=9), batch_size=4, num_workers=2, multiprocessing_context=method)
    found: list[list[int]] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(flat(list(loader))))
        thread.start()
        thread.join()
    found.append(flat(list(loader)))
    assert found == [list(range(16))] * 3


@pytest.mark.thorough
@pytest.mark.timeout(40)
def test_a_loader_that_was_used_works_in_a_forked_child_and_its_parent_at_once() -> None:
    loader = DataLoader(Photos(32, side=9), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    assert flat(list(loader)) == list(range(32))
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # OpenMP's threads did not come along
        status = 1
        try:
            status = 0 if all(flat(list(loader)) == list(range(32)) for _ in range(8)) else 2
        finally:
            os._exit(status)
    try:
        assert all(flat(list(loader)) == list(range(32)) for _ in range(8))
        assert ends(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
