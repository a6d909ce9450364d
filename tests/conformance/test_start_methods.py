"""Workers that are not forked from this process. They take seconds to start, so one run serves many tests."""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import datasets
from .datasets import (
    Drawing,
    EventLooped,
    Failing,
    FileReader,
    Numbers,
    OwnGenerator,
    OwnNumber,
    OwnServer,
    PickledGenerator,
    ShardedStream,
    Surroundings,
    ThreadPooled,
    TorchGenerator,
    Witness,
    surroundings,
    tag_dataset,
)
from .running import failure_of, forked_only, numbers, processes_only, told
from .torches import warns_of_what_cannot_be_pickled

pytestmark = [processes_only, forked_only]

METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])

FROM_PROGRAM = ["folder", "path", "arguments"]
"""What multiprocessing sends along to a process that its fork server starts."""


@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def epochs(request: pytest.FixtureRequest, Loader: Any) -> list[list[dict[str, list[Any]]]]:
    """Two epochs of two batches from two persistent workers, as lists."""
    datasets.in_parent_only = True
    loader = Loader(
        Witness(8),
        batch_size=4,
        num_workers=2,
        multiprocessing_context=request.param,
        persistent_workers=True,
        worker_init_fn=tag_dataset,
        generator=torch.Generator().manual_seed(3),
    )
    try:
        runs = [list(loader) for _ in range(2)]
    finally:
        datasets.in_parent_only = False
    return [[{name: column.tolist() for name, column in batch.items()} for batch in run] for run in runs]


@pytest.mark.quick(Loader="headrace", epochs="spawn")
def test_every_epoch_delivers_every_sample_in_order(epochs: Any) -> None:
    assert [[batch["index"] for batch in epoch] for epoch in epochs] == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2


@pytest.mark.quick(Loader="headrace", epochs="spawn")
def test_workers_do_not_share_what_was_changed_in_this_process(epochs: Any) -> None:
    assert {value for epoch in epochs for batch in epoch for value in batch["in_parent_only"]} == {False}


@pytest.mark.quick(Loader="headrace", epochs="spawn")
def test_workers_know_their_number_their_seed_and_their_dataset(epochs: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    base = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    for epoch in epochs:
        for worker, batch in enumerate(epoch):
            assert [worker] * 4 == batch["worker"]
            assert batch["workers"] == [2] * 4
            assert [base + worker] * 4 == batch["seed"]
            assert batch["own_dataset"] == [True] * 4


@pytest.mark.quick(Loader="headrace", epochs="spawn")
def test_workers_run_the_init_function(epochs: Any) -> None:
    assert [[batch["tag"] for batch in epoch] for epoch in epochs] == [[[0] * 4, [1] * 4]] * 2


@pytest.mark.quick(Loader="headrace", epochs="spawn")
def test_persistent_workers_stay_for_both_epochs(epochs: Any) -> None:
    assert [batch["pid"] for batch in epochs[0]] == [batch["pid"] for batch in epochs[1]]
    assert [batch["seen"] for batch in epochs[1]] == [[5, 6, 7, 8]] * 2


@pytest.mark.quick(Loader="headrace", epochs="spawn")
def test_workers_compute_with_one_thread(epochs: Any) -> None:
    assert {value for epoch in epochs for batch in epoch for value in batch["threads"]} == {1}


@pytest.mark.thorough
def test_spawned_workers_draw_what_forked_ones_draw(Loader: Any) -> None:
    runs = []
    for context in ("fork", multiprocessing.get_context("spawn")):
        loader = Loader(
            Drawing(4),
            num_workers=1,
            multiprocessing_context=context,
            generator=torch.Generator().manual_seed(5),
            collate_fn=list,
        )
        runs.append(list(loader))
    assert runs[0] == runs[1]


@pytest.mark.thorough
def test_a_spawned_worker_continues_after_an_exception(Loader: Any) -> None:
    dataset = Failing(3, ValueError("bad sample"), at=[1])
    iterator = iter(Loader(dataset, num_workers=1, multiprocessing_context="spawn"))
    assert next(iterator).tolist() == [0]
    text = told(failure_of(ValueError, lambda: next(iterator)))
    assert text.startswith("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback")
    assert numbers(iterator) == [[2]]


@pytest.mark.thorough
def test_a_stream_is_sharded_over_workers_of_a_fork_server(Loader: Any) -> None:
    loader = Loader(ShardedStream(5), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert list(loader) == [0, 1, 2, 3, 4]


@warns_of_what_cannot_be_pickled
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_pickled_is_warned_of_and_refused(Loader: Any, method: str) -> None:
    class Local(Numbers):
        pass

    loader = Loader(Local(4), num_workers=1, multiprocessing_context=method)
    with pytest.warns(UserWarning, match="^Got pickle error when attempting to start a worker Process. "):
        error = failure_of((AttributeError, TypeError, pickle.PicklingError), lambda: iter(loader))
    assert "Local" in str(error)


# -- each worker imports the program's modules and unpickles the dataset by itself -------------------------------------


@METHODS
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("Dataset", [ThreadPooled, EventLooped, OwnServer])
def test_what_unpickling_starts_runs_in_each_worker(Loader: Any, method: str, persistent: bool, Dataset: Any) -> None:
    loader = Loader(
        Dataset(4), batch_size=2, num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    for _ in range(2):
        assert numbers(loader) == [[0, 1], [2, 3]]


@METHODS
@pytest.mark.parametrize("kind", [OwnGenerator, PickledGenerator, TorchGenerator])
def test_random_generators_that_unpickling_makes_differ_from_worker_to_worker(
    Loader: Any, method: str, kind: type[OwnGenerator]
) -> None:
    loader = Loader(kind(4), batch_size=None, num_workers=2, multiprocessing_context=method)
    assert len({*loader, *loader}) == 8


@METHODS
def test_each_worker_has_its_own_place_in_a_file_that_unpickling_opens(
    Loader: Any, method: str, tmp_path: Path
) -> None:
    file = tmp_path / "numbers"
    file.write_bytes(bytes(range(8)))
    loader = Loader(FileReader(4, file), batch_size=None, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        assert list(loader) == [0, 0, 1, 1]


@METHODS
def test_each_worker_is_the_process_that_unpickled_its_dataset(Loader: Any, method: str) -> None:
    loader = Loader(OwnNumber(4), batch_size=None, num_workers=2, multiprocessing_context=method)
    assert list(loader) == [True] * 4


# -- what the program changes between epochs -----------------------------------------------------------------------


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Changes what workers have from this process. Afterwards it is as before."""

    def change() -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        sys.argv.append("--second-epoch")
        monkeypatch.setenv("ROTATED_KEY", "new")
        os.umask(0o027)
        if cores:
            os.sched_setaffinity(0, {min(cores)})

    monkeypatch.setattr(sys, "argv", [*sys.argv])
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    mask = os.umask(0o022)
    yield change
    os.umask(mask)
    if cores:
        os.sched_setaffinity(0, cores)


@METHODS
def test_what_the_program_changes_between_epochs_reaches_the_next_workers(
    Loader: Any, method: str, changes: Callable[[], None]
) -> None:
    loader = Loader(Surroundings(), batch_size=None, num_workers=1, multiprocessing_context=method)
    before = surroundings()
    (first,) = loader
    changes()
    (second,) = loader
    # A fork server of multiprocessing keeps the environment and so on that it was started with.
    names = FROM_PROGRAM if method == "forkserver" else [*before]
    assert [first[name] for name in names] == [before[name] for name in names]
    assert [second[name] for name in names] == [surroundings()[name] for name in names]
    assert all(second[name] != before[name] for name in FROM_PROGRAM)


def test_the_default_start_method_is_that_of_multiprocessing(Loader: Any) -> None:
    loader = Loader(Witness(2), num_workers=1)
    datasets.in_parent_only = True
    try:
        inherited = [bool(batch["in_parent_only"]) for batch in loader]
    finally:
        datasets.in_parent_only = False
    assert [multiprocessing.get_start_method() == "fork"] * 2 == inherited
