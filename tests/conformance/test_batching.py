"""Which samples come in which batch: batch sizes, samplers, lengths, and what a dataset may be."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from .datasets import (
    AsTensor,
    Failing,
    FailingSampler,
    Numbers,
    OneOrMany,
    Rows,
    SingleOnly,
    Unsized,
    WholeBatches,
)
from .running import failure_of, forked, numbers, outcomes, with_and_without_workers

pytestmark = with_and_without_workers


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batches_follow_the_dataset_in_order(Loader: Any, num_workers: int, batch_size: int) -> None:
    loader = Loader(Numbers(10), batch_size=batch_size, **forked(num_workers))
    expected = [list(range(start, start + batch_size)) for start in range(0, 10, batch_size)]
    assert expected == numbers(loader)


def test_one_sample_makes_a_batch_by_default(Loader: Any, num_workers: int) -> None:
    assert numbers(Loader(Numbers(3), **forked(num_workers))) == [[0], [1], [2]]


@pytest.mark.parametrize(("drop_last", "last"), [(False, [[6]]), (True, [])])
def test_a_short_last_batch_is_kept_unless_drop_last(
    Loader: Any, num_workers: int, drop_last: bool, last: list[Any]
) -> None:
    loader = Loader(Numbers(7), batch_size=3, drop_last=drop_last, **forked(num_workers))
    assert [[0, 1, 2], [3, 4, 5], *last] == numbers(loader)


@pytest.mark.parametrize(("drop_last", "expected"), [(False, [[0, 1, 2]]), (True, [])])
def test_a_dataset_smaller_than_a_batch_is_one_short_batch(
    Loader: Any, num_workers: int, drop_last: bool, expected: list[Any]
) -> None:
    assert expected == numbers(Loader(Numbers(3), batch_size=8, drop_last=drop_last, **forked(num_workers)))


def test_an_empty_dataset_gives_no_batch(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(0), batch_size=4, **forked(num_workers))
    assert (len(loader), list(loader)) == (0, [])


def test_without_a_batch_size_samples_come_one_by_one(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(4), batch_size=None, **forked(num_workers))
    assert (numbers(loader), len(loader)) == ([0, 1, 2, 3], 4)


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (10, {"batch_size": 3}, 4),
        (10, {"batch_size": 3, "drop_last": True}, 3),
        (9, {"batch_size": 3}, 3),
        (9, {"batch_size": 3, "drop_last": True}, 3),
        (2, {"batch_size": 3}, 1),
        (2, {"batch_size": 3, "drop_last": True}, 0),
        (5, {"batch_size": None}, 5),
        (5, {"sampler": [0, 0, 4]}, 3),
        (5, {"sampler": [0, 0, 4], "batch_size": 2}, 2),
        (5, {"batch_sampler": [[0], [1, 2], [3]]}, 3),
    ],
)
def test_the_length_is_the_number_of_batches(
    Loader: Any, num_workers: int, size: int, options: dict[str, Any], expected: int
) -> None:
    loader = Loader(Numbers(size), **options, **forked(num_workers))
    assert (expected, expected) == (len(loader), sum(1 for _ in loader))


def test_a_sampler_says_which_samples_and_in_which_order(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(9), batch_size=2, sampler=[8, 1, 1, 0, 5], **forked(num_workers))
    assert numbers(loader) == [[8, 1], [1, 0], [5]]


def test_a_sampler_says_the_order_without_batches_too(Loader: Any, num_workers: int) -> None:
    assert numbers(Loader(Numbers(5), batch_size=None, sampler=[4, 2, 0], **forked(num_workers))) == [4, 2, 0]


def test_drop_last_applies_to_what_a_sampler_gives(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(9), batch_size=2, sampler=[8, 1, 5], drop_last=True, **forked(num_workers))
    assert (numbers(loader), len(loader)) == ([[8, 1]], 1)


def test_a_sampler_without_length_can_be_iterated_but_not_measured(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(9), batch_size=2, sampler=Unsized([3, 4, 5]), **forked(num_workers))
    assert numbers(loader) == [[3, 4], [5]]
    with pytest.raises(TypeError, match=r"object of type 'Unsized' has no len\(\)"):
        len(loader)


def test_a_batch_sampler_says_what_is_in_each_batch(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(9), batch_sampler=[[3], [1, 1, 8], [0, 2]], **forked(num_workers))
    assert numbers(loader) == [[3], [1, 1, 8], [0, 2]]


def test_a_batch_sampler_without_length_can_be_iterated_but_not_measured(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(9), batch_sampler=Unsized([[3, 4], [5]]), **forked(num_workers))
    assert numbers(loader) == [[3, 4], [5]]
    with pytest.raises(TypeError, match=r"object of type 'Unsized' has no len\(\)"):
        len(loader)


@pytest.mark.parametrize("as_batch", [tuple, torch.tensor, iter], ids=["tuple", "tensor", "iterator"])
def test_a_batch_of_indices_may_be_any_iterable(Loader: Any, num_workers: int, as_batch: Any) -> None:
    batches = [as_batch([3, 4]), as_batch([5])]
    loader = Loader(list(range(9)), batch_sampler=batches, **forked(num_workers))
    assert numbers(loader) == [[3, 4], [5]]


def test_a_batch_sampler_may_give_what_a_sampler_gives_without_batching(Loader: Any, num_workers: int) -> None:
    batch_sampler = BatchSampler(range(5), batch_size=2, drop_last=False)
    tensors = Loader(torch.arange(5) * 2, batch_size=None, sampler=batch_sampler, **forked(num_workers))
    assert numbers(tensors) == [[0, 2], [4, 6], [8]]


def test_an_empty_batch_of_indices_cannot_be_collated(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(9), batch_sampler=[[0], [], [1]], **forked(num_workers)))
    assert numbers(outcomes(iterator, IndexError)) == [[0], IndexError, [1]]


def test_keys_need_not_be_numbers(Loader: Any, num_workers: int) -> None:
    dataset = {"a": 1.5, "b": 2.5, ("c", 3): 3.5}
    loader = Loader(dataset, batch_size=2, sampler=["b", ("c", 3), "a"], **forked(num_workers))
    assert numbers(loader) == [[2.5, 3.5], [1.5]]


def test_a_dataset_that_answers_for_many_is_asked_once_a_batch(Loader: Any, num_workers: int) -> None:
    loader = Loader(WholeBatches(), batch_size=3, **forked(num_workers))
    assert numbers(loader) == [[[0, 3], [1, 3], [2, 3]], [[3, 3], [4, 3], [5, 3]], [[6, 1]]]


def test_a_dataset_that_answers_for_many_is_asked_for_one_without_batching(Loader: Any, num_workers: int) -> None:
    assert numbers(Loader(OneOrMany(3), batch_size=None, **forked(num_workers))) == [0, 1, 2]
    assert numbers(Loader(OneOrMany(3), batch_size=3, **forked(num_workers))) == [[0, -1, -2]]


def test_what_a_dataset_answers_for_many_goes_to_the_collate_function_as_it_is(Loader: Any, num_workers: int) -> None:
    loader = Loader(AsTensor(5), batch_size=2, collate_fn=torch.neg, **forked(num_workers))
    assert numbers(loader) == [[0, -1], [-2, -3], [-4]]


def test_a_dataset_can_refuse_to_be_asked_for_many(Loader: Any, num_workers: int) -> None:
    assert numbers(Loader(SingleOnly(3), batch_size=2, **forked(num_workers))) == [[0, 1], [2]]


def test_stop_iteration_in_a_map_dataset_ends_the_epoch_silently(Loader: Any, num_workers: int) -> None:
    dataset = Failing(8, StopIteration(), at=[5])
    iterator = iter(Loader(dataset, batch_size=2, **forked(num_workers)))
    assert numbers([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
    assert type(failure_of(StopIteration, lambda: next(iterator))) is StopIteration


def test_an_index_error_in_a_map_dataset_does_not_end_the_epoch_silently(Loader: Any, num_workers: int) -> None:
    loader = Loader([0, 1, 2], batch_size=2, sampler=[0, 1, 2, 3], **forked(num_workers))
    assert "list index out of range" in str(failure_of(IndexError, lambda: list(loader)))


def test_an_exhausted_iterator_stays_exhausted(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(3), **forked(num_workers)))
    assert sum(1 for _ in iterator) == 3
    assert [next(iterator, None), next(iterator, None)] == [None, None]


def test_each_epoch_delivers_all_batches_again(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(5), batch_size=2, **forked(num_workers))
    assert [numbers(loader), numbers(loader)] == [[[0, 1], [2, 3], [4]]] * 2


def test_a_half_used_iterator_does_not_disturb_the_next(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(5), batch_size=2, **forked(num_workers))
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert first is not second
    assert numbers(second) == [[0, 1], [2, 3], [4]]
    assert numbers(first) == [[2, 3], [4]]


def test_a_dataset_that_grew_is_seen_grown_in_the_next_epoch(Loader: Any, num_workers: int) -> None:
    dataset = [10, 11]
    loader = Loader(dataset, batch_size=2, **forked(num_workers))
    first = numbers(loader)
    dataset.append(12)
    assert (first, numbers(loader), len(loader)) == ([[10, 11]], [[10, 11], [12]], 2)


def test_an_exception_in_a_sampler_reaches_the_user_unchanged(Loader: Any, num_workers: int) -> None:
    with pytest.raises(LookupError, match=r"^out of indices$"):
        list(Loader(Numbers(9), batch_size=2, sampler=FailingSampler(), **forked(num_workers)))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        pytest.param(range(5, 8), [[5, 6], [7]], id="range"),
        pytest.param([1.5, 2.5, 3.5], [[1.5, 2.5], [3.5]], id="list"),
        pytest.param(torch.tensor([4, 5, 6]), [[4, 5], [6]], id="tensor"),
        pytest.param(Subset(Numbers(9), [8, 0, 4]), [[8, 0], [4]], id="subset"),
        pytest.param(ConcatDataset([Numbers(1), Numbers(2)]), [[0, 0], [1]], id="concatenation"),
    ],
)
def test_anything_with_length_and_items_is_a_dataset(
    Loader: Any, num_workers: int, dataset: Any, expected: list[Any]
) -> None:
    assert expected == numbers(Loader(dataset, batch_size=2, **forked(num_workers)))


def test_a_tensor_dataset_gives_a_list_of_columns(Loader: Any, num_workers: int) -> None:
    dataset = TensorDataset(torch.arange(6).reshape(3, 2), torch.tensor([7, 8, 9]))
    batches = list(Loader(dataset, batch_size=2, **forked(num_workers)))
    assert [list, list] == [type(batch) for batch in batches]
    assert [numbers(batch) for batch in batches] == [[[[0, 1], [2, 3]], [7, 8]], [[[4, 5]], [9]]]


def test_stacked_datasets_come_as_a_dictionary(Loader: Any, num_workers: int) -> None:
    dataset = StackDataset(x=Numbers(3), y=OneOrMany(3))
    batches = list(Loader(dataset, batch_size=2, **forked(num_workers)))
    assert [{key: column.tolist() for key, column in batch.items()} for batch in batches] == [
        {"x": [0, 1], "y": [0, -1]},
        {"x": [2], "y": [-2]},
    ]


def test_parts_of_a_random_split_together_are_the_whole(Loader: Any, num_workers: int) -> None:
    parts = random_split(Numbers(10), [0.7, 0.3], generator=torch.Generator().manual_seed(1))
    seen = [sorted(torch.cat(list(Loader(part, batch_size=4, **forked(num_workers)))).tolist()) for part in parts]
    assert [len(part) for part in seen] == [7, 3]
    assert list(range(10)) == sorted(seen[0] + seen[1])


def test_batches_of_very_many_indices_arrive(Loader: Any, num_workers: int) -> None:
    loader = Loader(range(50_000), batch_size=12_500, collate_fn=sum, **forked(num_workers))
    assert [sum(range(start, start + 12_500)) for start in range(0, 50_000, 12_500)] == list(loader)


def test_long_keys_and_long_answers_do_not_block_each_other(Loader: Any, num_workers: int) -> None:
    keys = [str(number) * 150_000 for number in range(10)]
    dataset = {key: key for key in keys}
    assert keys == list(Loader(dataset, batch_size=None, sampler=keys, **forked(num_workers)))


def test_many_batches_arrive_complete_and_in_order(Loader: Any, num_workers: int) -> None:
    loader = Loader(Rows(600, width=40), batch_size=4, **forked(num_workers))
    expected = torch.arange(600.0)[:, None].expand(600, 40)
    assert torch.equal(expected, torch.cat(list(loader)))
