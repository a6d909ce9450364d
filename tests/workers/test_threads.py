"""backend="thread": what worker threads deliver, and what they leave alone in the process that they live in."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from headrace import DataLoader
from headrace.core.errors import UsageError
from tests.workers.datasets import Nested, Photos
from tests.workers.thread_data import (
    Counter,
    Drawing,
    DrawingFromOwn,
    DrawingLate,
    DrawingLateStream,
    DrawingStart,
    DrawingStream,
    Gate,
    Places,
    Shard,
    Turns,
    as_lists,
    collate_drawing,
    equal,
    global_draws,
    threads,
)

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


def test_data_pipes_are_split_by_one_worker_at_a_time() -> None:
    """torch looks into the graph of pipes by a hook that all threads share."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            pipe = IterableWrapper(range(24)).shuffle().sharding_filter().map(int)
            assert sorted(torch.cat(list(threads(pipe, num_workers=2))).tolist()) == [*range(24)]
    finally:
        sys.setswitchinterval(usual)


def test_worker_init_fns_of_data_pipes_may_wait_for_each_other() -> None:
    both = threading.Barrier(2, timeout=30)
    pipe = IterableWrapper(range(8)).sharding_filter()
    loader = threads(pipe, num_workers=2, worker_init_fn=lambda number: both.wait())
    assert sorted(torch.cat(list(loader)).tolist()) == [*range(8)]


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


# -- workers as datasets see them -----------------------------------------------------------------------------------


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


@pytest.mark.thorough
def test_the_number_of_threads_that_torch_uses_is_untouched_elsewhere() -> None:
    code = """
import threading, torch
from headrace import DataLoader
from headrace.core.errors import UsageError
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


FIX = r"headrace\.rng\(\).*backend=\"process\""


def received(loader: DataLoader[Any]) -> list[Any]:
    """Returns the batches that come before the error of a dataset that draws from generators that threads share."""
    batches = []
    with pytest.raises(UsageError, match=f"(?s)Draw.*backend='thread'.*{FIX}"):
        for batch in loader:
            batches.append(batch)
    return batches


@pytest.mark.parametrize("source", ["random", "numpy", "torch"])
@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
@pytest.mark.parametrize("persistent", [False, True])
def test_draws_from_a_global_generator_are_an_error_before_the_first_batch(
    kind: Any, source: str, persistent: bool
) -> None:
    loader = threads(kind(source), batch_size=4, seed=9, persistent_workers=persistent)
    for _ in range(2):
        assert received(loader) == []


def test_a_sampler_of_the_user_s_changes_nothing_of_that() -> None:
    assert received(threads(Drawing("random"), batch_size=4, seed=9, sampler=[*range(24)])) == []


def test_draws_where_a_stream_begins_are_an_error_as_well() -> None:
    assert received(threads(DrawingStart(), batch_size=4, seed=9)) == []


def test_draws_from_a_generator_that_the_dataset_holds_are_an_error_as_well() -> None:
    assert received(threads(DrawingFromOwn(), batch_size=4, seed=9)) == []


def test_draws_of_the_collate_function_count_as_well() -> None:
    loader = threads(Photos(16, side=9), batch_size=4, seed=9, collate_fn=collate_drawing)
    with pytest.raises(UsageError, match=FIX):
        list(loader)


@pytest.mark.parametrize("kind", [DrawingLate, DrawingLateStream])
@pytest.mark.parametrize("source", ["random", "numpy", "torch"])
def test_no_batch_of_a_dataset_that_begins_to_draw_later_comes_without_a_word(kind: Any, source: str) -> None:
    batches = 0
    with warnings.catch_warnings(record=True) as caught, contextlib.suppress(UsageError):
        warnings.simplefilter("always")
        # An error if the loop waited meanwhile; if it did not, it may have drawn itself, and that is a warning.
        for _, draws in threads(kind(source, first=12), batch_size=2, seed=9, prefetch_factor=1):
            assert draws.tolist() == [0.0, 0.0] or caught
            batches += 1
    assert 1 <= batches <= 6 or caught


def test_a_loop_that_draws_itself_is_warned_once_that_the_dataset_may_have() -> None:
    dataset = Turns(40)
    with pytest.warns(UserWarning, match=f"of Turns .*{FIX}") as caught:
        for batch in threads(dataset, batch_size=1, seed=9, prefetch_factor=4):
            random.random()
            dataset.let_go(int(batch))
    assert len(caught) == 1


@pytest.mark.parametrize("seed", [None, 9])
def test_a_worker_init_fn_may_seed_the_global_generators(seed: int | None) -> None:
    dataset: Any = [*range(8)]
    assert list(threads(dataset, batch_size=None, worker_init_fn=random.seed, seed=seed)) == dataset


@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
@pytest.mark.parametrize("persistent", [False, True])
def test_draws_from_headrace_s_generator_bring_no_warning_and_the_same_numbers(kind: Any, persistent: bool) -> None:
    expected = threads(kind("headrace"), batch_size=4, seed=9, backend="process")
    loader = threads(kind("headrace"), batch_size=4, seed=9, persistent_workers=persistent)
    ours = [list(loader) for _ in range(2)]
    assert equal(ours, [list(expected), list(expected)])
    assert not equal(ours[0], ours[1])


def test_the_global_generators_are_untouched_with_a_seed() -> None:
    before = global_draws()
    for _ in threads(Drawing("headrace"), batch_size=4, shuffle=True, seed=9):
        assert global_draws() == before
    assert global_draws() == before
