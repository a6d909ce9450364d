"""Iterable datasets: one copy and one iterator a worker, each with its own end."""

import re
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset
from torch.utils.data.datapipes.iter import IterableWrapper

from .datasets import (
    BoundedStream,
    EpochStream,
    FailingStream,
    Numbers,
    PerWorkerStream,
    ShardedStream,
    Stream,
    narrow_stream,
)
from .running import failure_of, forked, numbers, outcomes, told, with_and_without_workers

TWO_WORKERS_HINT = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the "
    "IterableDataset replica at each worker. Please see "
    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


@pytest.mark.parametrize(("drop_last", "last"), [(False, [[6]]), (True, [])])
def test_a_stream_is_cut_into_batches(Loader: Any, drop_last: bool, last: list[Any]) -> None:
    loader = Loader(Stream(7), batch_size=3, drop_last=drop_last)
    assert [[0, 1, 2], [3, 4, 5], *last] == numbers(loader)


def test_an_index_of_a_stream_says_only_how_long_a_batch_is(Loader: Any) -> None:
    iterator = iter(Loader(Stream(7), batch_size=3))
    assert [next(iterator._sampler_iter) for _ in range(4)] == [[None, None, None]] * 4


@with_and_without_workers
def test_without_a_batch_size_items_come_one_by_one(Loader: Any, num_workers: int) -> None:
    loader = Loader(ShardedStream(5), batch_size=None, **forked(num_workers))
    assert list(loader) == [0, 1, 2, 3, 4]


@with_and_without_workers
def test_a_stream_may_cut_its_own_batches(Loader: Any, num_workers: int) -> None:
    loader = Loader(ChainDataset([Batches()]), batch_size=None, **forked(num_workers))
    copies = max(num_workers, 1)
    assert [[0.0]] * copies + [[1.0, 1.0]] * copies == numbers(loader)


class Batches(Stream):
    """Two batches of a size of their own."""

    def __init__(self) -> None:
        super().__init__(2)

    def __iter__(self) -> Any:
        return iter([torch.zeros(1), torch.ones(2)])


@with_and_without_workers
def test_an_empty_stream_gives_no_batch(Loader: Any, num_workers: int) -> None:
    assert list(Loader(Stream(0), batch_size=2, **forked(num_workers))) == []


def test_each_worker_gives_the_whole_stream_unless_it_is_sharded(Loader: Any) -> None:
    loader = Loader(Stream(4), batch_size=2, **forked(2))
    assert numbers(loader) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_a_sharded_stream_comes_in_turns_of_its_workers(Loader: Any) -> None:
    loader = Loader(ShardedStream(10), batch_size=2, **forked(2))
    assert numbers(loader) == [[0, 2], [1, 3], [4, 6], [5, 7], [8], [9]]


def test_a_stream_can_be_sharded_by_the_init_function(Loader: Any) -> None:
    loader = Loader(BoundedStream(10, 18), batch_size=2, worker_init_fn=narrow_stream, **forked(2))
    assert numbers(loader) == [[10, 11], [14, 15], [12, 13], [16, 17]]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((1, 5), [0, 100, 101, 102, 103, 104]),
        ((5, 1), [0, 100, 1, 2, 3, 4]),
        ((0, 3), [100, 101, 102]),
        ((3, 0), [0, 1, 2]),
        ((3, 3), [0, 100, 1, 101, 2, 102]),
    ],
)
def test_a_worker_goes_on_when_the_stream_of_another_has_ended(
    Loader: Any, lengths: tuple[int, ...], expected: list[int]
) -> None:
    loader = Loader(PerWorkerStream(*lengths), batch_size=None, **forked(2))
    assert expected == list(loader)


@pytest.mark.parametrize(
    ("drop_last", "expected"),
    [(False, [[0, 1], [100, 101], [2, 3], [102], [4]]), (True, [[0, 1], [100, 101], [2, 3]])],
)
def test_the_short_last_batch_is_kept_or_dropped_per_worker(Loader: Any, drop_last: bool, expected: list[Any]) -> None:
    loader = Loader(PerWorkerStream(5, 3), batch_size=2, drop_last=drop_last, **forked(2))
    assert expected == numbers(loader)


def test_out_of_order_everything_comes_exactly_once(Loader: Any) -> None:
    loader = Loader(PerWorkerStream(30, 7), batch_size=2, in_order=False, **forked(2))
    seen = [number for batch in numbers(loader) for number in batch]
    assert [*range(30), *range(100, 107)] == sorted(seen)


@with_and_without_workers
def test_an_exhausted_stream_stays_exhausted(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(ShardedStream(4), batch_size=2, **forked(num_workers)))
    assert len(list(iterator)) == 2
    assert [next(iterator, None), next(iterator, None)] == [None, None]


@with_and_without_workers
def test_each_epoch_asks_the_stream_for_a_new_iterator(Loader: Any, num_workers: int) -> None:
    loader = Loader(ShardedStream(5), batch_size=None, **forked(num_workers))
    assert [list(loader) for _ in range(3)] == [[0, 1, 2, 3, 4]] * 3


def test_without_workers_the_stream_itself_is_iterated(Loader: Any) -> None:
    stream = EpochStream()
    loader = Loader(stream, batch_size=None)
    assert [list(loader) for _ in range(2)] == [[1, 1], [2, 2]]
    assert stream.epoch == 2


def test_new_workers_start_from_the_stream_of_the_main_process(Loader: Any) -> None:
    stream = EpochStream()
    loader = Loader(stream, batch_size=None, **forked(2))
    assert [list(loader) for _ in range(2)] == [[1, 1, 1, 1]] * 2
    assert stream.epoch == 0


def test_persistent_workers_keep_their_stream_and_ask_it_again(Loader: Any) -> None:
    loader = Loader(EpochStream(), batch_size=None, persistent_workers=True, **forked(2))
    assert [list(loader) for _ in range(3)] == [[1] * 4, [2] * 4, [3] * 4]


def test_persistent_workers_start_again_after_uneven_ends(Loader: Any) -> None:
    loader = Loader(PerWorkerStream(1, 4), batch_size=None, persistent_workers=True, **forked(2))
    assert [list(loader) for _ in range(3)] == [[0, 100, 101, 102, 103]] * 3


def test_a_half_used_persistent_stream_starts_again(Loader: Any) -> None:
    loader = Loader(ShardedStream(8), batch_size=None, persistent_workers=True, **forked(2))
    iterator = iter(loader)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    assert list(loader) == list(range(8))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 4}, 3),
        ({"batch_size": 4, "drop_last": True}, 2),
        ({"batch_size": None}, 10),
        ({"batch_size": 4, "num_workers": 2}, 3),
    ],
)
def test_the_length_is_an_estimate_from_the_length_of_the_stream(
    Loader: Any, options: dict[str, Any], expected: int
) -> None:
    assert expected == len(Loader(Stream(0, reported=10), **options))


def test_a_stream_without_length_leaves_the_loader_without_one(Loader: Any) -> None:
    with pytest.raises(TypeError, match=r"object of type 'ShardedStream' has no len\(\)"):
        len(Loader(ShardedStream(5)))


@with_and_without_workers
def test_more_batches_than_the_reported_length_are_warned_of(Loader: Any, num_workers: int) -> None:
    stream = Stream(4, reported=3)
    loader = Loader(stream, batch_size=1, **forked(num_workers))
    len(loader)
    with pytest.warns(UserWarning) as caught:
        assert max(num_workers, 1) * 4 == len([*loader])
    hint = TWO_WORKERS_HINT if num_workers else ""
    assert [
        f"Length of IterableDataset {stream} was reported to be 3(when accessing len(dataloader)), "
        f"but {count} samples have been fetched. {hint}"
        for count in range(4, max(num_workers, 1) * 4 + 1)
    ] == [str(warning.message) for warning in caught if warning.category is UserWarning]


def test_the_warning_counts_batches_and_not_samples(Loader: Any) -> None:
    loader = Loader(Stream(8, reported=4), batch_size=2)
    assert len(loader) == 2
    assert numbers(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_nobody_is_warned_who_did_not_ask_for_the_length(Loader: Any) -> None:
    loader = Loader(Unmeasured(4, reported=1), batch_size=1)
    assert sum(1 for _ in loader) == 4


class Unmeasured(Stream):
    """Reports a length that is wrong."""


@with_and_without_workers
def test_an_exception_in_a_stream_is_raised_after_the_batches_before_it(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(FailingStream(after=4), batch_size=2, **forked(num_workers)))
    copies = max(num_workers, 1)
    expected = [[0, 1]] * copies + [[2, 3]] * copies
    assert expected == numbers(next(iterator) for _ in expected)
    error = failure_of(ValueError, lambda: next(iterator))
    if num_workers == 0:
        assert str(error) == "the stream broke"
    else:
        assert told(error).startswith("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback")
        assert "ValueError: the stream broke" in str(error).splitlines()


@with_and_without_workers
def test_a_stream_that_broke_is_at_its_end(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(FailingStream(after=2), batch_size=2, **forked(num_workers)))
    copies = max(num_workers, 1)
    assert [[0, 1]] * copies + [ValueError] * copies == numbers(outcomes(iterator, ValueError))


def test_a_stream_that_cannot_start_is_an_exception_of_iter_without_workers(Loader: Any) -> None:
    loader = Loader(FailingStream(after=None))
    assert str(failure_of(ValueError, lambda: iter(loader))) == "no stream today"


def test_a_stream_that_cannot_start_is_an_exception_of_next_with_workers(Loader: Any) -> None:
    iterator = iter(Loader(FailingStream(after=None), **forked(2)))
    text = told(failure_of(ValueError, lambda: next(iterator)))
    assert text.startswith("Caught ValueError in DataLoader worker process 0.\n")
    assert "no stream today" in text


def test_the_sampler_of_a_stream_gives_nothing_for_ever(Loader: Any) -> None:
    loader = Loader(Stream(3), batch_size=2)
    endless = iter(loader.batch_sampler)
    assert [next(endless), next(endless)] == [[None, None]] * 2


def test_a_map_dataset_has_no_length_noted(Loader: Any) -> None:
    loader = Loader(Numbers(4))
    len(loader)
    assert loader._IterableDataset_len_called is None


def test_the_reported_length_is_noted_in_samples(Loader: Any) -> None:
    loader = Loader(Stream(3, reported=7), batch_size=2)
    before = loader._IterableDataset_len_called
    len(loader)
    assert (before, loader._IterableDataset_len_called) == (None, 7)


@with_and_without_workers
def test_a_data_pipe_is_sharded_and_delivered_once(Loader: Any, num_workers: int) -> None:
    pipe = IterableWrapper(range(10)).sharding_filter()
    loader = Loader(pipe, batch_size=None, **forked(num_workers))
    assert list(loader) == list(range(10))


def test_a_data_pipe_is_shuffled_by_the_loader(Loader: Any) -> None:
    pipe = IterableWrapper(range(20)).shuffle()
    in_order = list(Loader(pipe, batch_size=None, shuffle=False))
    shuffled = list(Loader(pipe, batch_size=None, shuffle=True))
    assert list(range(20)) == in_order
    assert in_order != shuffled
    assert in_order == sorted(shuffled)


def test_an_address_in_the_warning_is_that_of_the_stream(Loader: Any) -> None:
    stream = Stream(2, reported=1)
    loader = Loader(stream, batch_size=None)
    len(loader)
    with pytest.warns(UserWarning, match=re.escape(f"Length of IterableDataset {stream} was reported to be 1(")):
        assert list(loader) == [0, 1]


@with_and_without_workers
@pytest.mark.parametrize("persistent", [False, True])
def test_a_shuffling_pipe_has_torch_s_order_in_each_epoch(Loader: Any, num_workers: int, persistent: bool) -> None:
    """The orders are those of torch's loader, in every epoch: the seeds that pipes share are drawn as often."""

    def orders(loader_class: Any) -> list[Any]:
        torch.manual_seed(11)
        kept = {"persistent_workers": True} if persistent and num_workers else {}
        pipe = IterableWrapper(range(12)).shuffle().sharding_filter()
        loader = loader_class(pipe, batch_size=4, **forked(num_workers), **kept)
        return [numbers(loader) for _ in range(3)]

    assert orders(torch.utils.data.DataLoader) == orders(Loader)


@with_and_without_workers
def test_a_shuffling_pipe_draws_from_the_loader_s_generator_as_often_as_torch(Loader: Any, num_workers: int) -> None:
    def orders(loader_class: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(3)
        loader = loader_class(IterableWrapper(range(12)).shuffle(), 4, generator=generator, **forked(num_workers))
        return [*(numbers(loader) for _ in range(3)), generator.get_state().tolist()]

    assert orders(torch.utils.data.DataLoader) == orders(Loader)
