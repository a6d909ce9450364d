"""What a user's collate function returns arrives as it was; without batching samples are only converted."""

import types
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from . import batches
from .batches import Box, FrozenMap, Labelled, Marked, Point, TaggedDict, TaggedList, marked, tagged
from .datasets import Rows, Stream
from .equality import assert_same
from .running import forked, forked_only, numbers, processes_only, small_and_large, with_and_without_workers

pytestmark = with_and_without_workers


def collated(Loader: Any, collate_fn: Any, num_workers: int, width: int = 3) -> Any:
    """What becomes of the second batch, which holds the rows 2 and 3."""
    first, second = Loader(Rows(4, width), batch_size=2, collate_fn=collate_fn, **forked(num_workers))
    assert type(first) is type(second)
    return second


def converted(Loader: Any, sample: Any, num_workers: int) -> Any:
    """What becomes of a sample without batching."""
    (result,) = Loader([sample], batch_size=None, **forked(num_workers))
    return result


def rows(width: int = 3) -> torch.Tensor:
    """The rows 2 and 3 as one tensor."""
    return torch.tensor([[2.0], [3.0]]).repeat(1, width)


def test_a_collate_function_gets_the_list_of_samples(Loader: Any, num_workers: int) -> None:
    loader = Loader(["a", "b", "c"], batch_size=2, collate_fn=repr, **forked(num_workers))
    assert list(loader) == ["['a', 'b']", "['c']"]


@small_and_large
def test_a_dataclass_arrives(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_dataclass, num_workers, width)
    assert type(batch) is Labelled
    assert_same(rows(width), batch.images)
    assert batch.labels == [2, 3]


def test_an_object_arrives(Loader: Any, num_workers: int) -> None:
    assert collated(Loader, batches.into_box, num_workers) == Box(rows().tolist())


@small_and_large
def test_an_object_with_a_tensor_inside_arrives(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_box_of_tensor, num_workers, width)
    assert type(batch) is Box
    assert_same(rows(width), batch.content)


@small_and_large
def test_an_array_arrives_as_an_array_that_can_be_written(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_array, num_workers, width)
    assert_same(rows(width).numpy(), batch)
    batch[:] = 7
    assert batch.tolist() == [[7.0] * width] * 2


def test_an_array_of_objects_arrives(Loader: Any, num_workers: int) -> None:
    expected = np.array(["sample 2", "sample 3"], dtype=object)
    assert_same(expected, collated(Loader, batches.into_object_array, num_workers))


def test_nothing_arrives_as_nothing(Loader: Any, num_workers: int) -> None:
    loader = Loader(Rows(4), batch_size=2, collate_fn=batches.into_nothing, **forked(num_workers))
    assert list(loader) == [None, None]


def test_plain_python_objects_arrive(Loader: Any, num_workers: int) -> None:
    expected = batches.into_python([*rows()])
    assert_same(expected, collated(Loader, batches.into_python, num_workers))


def test_big_python_objects_arrive(Loader: Any, num_workers: int) -> None:
    batch = collated(Loader, batches.into_big_python, num_workers)
    assert batches.into_big_python([]) == batch


@small_and_large
def test_a_tuple_of_a_collate_function_stays_a_tuple(Loader: Any, num_workers: int, width: int) -> None:
    assert_same(tuple(rows(width)), collated(Loader, batches.into_tuple, num_workers, width))


def test_a_user_can_pad_to_the_longest_of_the_batch(Loader: Any, num_workers: int) -> None:
    samples = [torch.ones(1), torch.ones(3), torch.ones(2)]
    loader = Loader(samples, batch_size=2, collate_fn=batches.padded, **forked(num_workers))
    assert [(rows.tolist(), lengths.tolist()) for rows, lengths in loader] == [
        ([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], [1, 3]),
        ([[1.0, 1.0]], [2]),
    ]


def test_a_user_can_leave_bad_samples_out(Loader: Any, num_workers: int) -> None:
    loader = Loader([1, None, 3, 4, None], batch_size=3, collate_fn=batches.without_nones, **forked(num_workers))
    assert numbers(loader) == [[1, 3], [4]]


@small_and_large
@pytest.mark.parametrize(
    ("collate_fn", "expected"),
    [
        pytest.param(batches.into_expanded, lambda batch: batch[:, :1].expand(-1, 5), id="expanded"),
        pytest.param(batches.into_transposed, torch.t, id="transposed"),
        pytest.param(batches.into_strided, lambda batch: batch[:, ::2], id="strided"),
    ],
)
def test_tensors_in_unusual_memory_layout_arrive_with_their_values(
    Loader: Any, num_workers: int, width: int, collate_fn: Any, expected: Any
) -> None:
    assert_same(expected(rows(width)), collated(Loader, collate_fn, num_workers, width))


@small_and_large
@pytest.mark.parametrize(
    ("collate_fn", "stride"),
    [
        pytest.param(batches.into_expanded, lambda width: (1, 0), id="expanded"),
        pytest.param(batches.into_transposed, lambda width: (1, width), id="transposed"),
        pytest.param(batches.into_strided, lambda width: (width, 2), id="strided"),
    ],
)
def test_tensors_in_unusual_memory_layout_arrive_with_their_strides(
    Loader: Any, num_workers: int, width: int, collate_fn: Any, stride: Any
) -> None:
    assert stride(width) == collated(Loader, collate_fn, num_workers, width).stride()


@small_and_large
def test_two_views_of_one_memory_still_share_it(Loader: Any, num_workers: int, width: int) -> None:
    front, back = collated(Loader, batches.into_views, num_workers, width)
    assert_same(rows(width).flatten()[: width + 1], front)
    back.zero_()
    assert front[-3:].tolist() == [2.0, 0.0, 0.0]


@small_and_large
def test_a_part_of_a_default_batch_arrives(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_part_of_default, num_workers, width)
    assert_same(rows(width)[1:, 1:], batch)


@small_and_large
def test_a_collate_function_may_use_the_default_several_times(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_two_of_three, num_workers, width)
    expected = {"second": 2 * rows(width), "first": rows(width), "again": rows(width)[:1]}
    assert_same(expected, batch)
    batch["again"].zero_()
    assert torch.count_nonzero(batch["first"][0]) == 0


@small_and_large
def test_a_tensor_that_is_twice_in_a_batch_still_is_one_tensor(Loader: Any, num_workers: int, width: int) -> None:
    one, other = collated(Loader, batches.into_twins, num_workers, width)
    assert_same(rows(width), one)
    assert one is other


@small_and_large
def test_a_leaf_that_requires_a_gradient_still_does(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_leaf, num_workers, width)
    assert_same(rows(width), batch)
    assert (batch.requires_grad, batch.is_leaf) == (True, True)


@small_and_large
def test_a_parameter_stays_a_parameter(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_parameter, num_workers, width)
    assert type(batch) is torch.nn.Parameter
    assert_same(rows(width), batch.data)


@small_and_large
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_a_sparse_tensor_of_a_collate_function_arrives(Loader: Any, num_workers: int, width: int) -> None:
    batch = collated(Loader, batches.into_sparse, num_workers, width)
    assert batch.layout is torch.sparse_coo
    assert_same(rows(width), batch.to_dense())


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        pytest.param(np.array([1, 2]), torch.tensor([1, 2]), id="array"),
        pytest.param(np.float32(1.5), torch.tensor(1.5), id="numpy_number"),
        pytest.param(np.array(["a", "b"]), np.array(["a", "b"]), id="array_of_text"),
        pytest.param(np.array([None, 1]), np.array([None, 1]), id="array_of_objects"),
        pytest.param(np.str_("text"), np.str_("text"), id="numpy_text"),
        pytest.param(3, 3, id="int"),
        pytest.param(2.5, 2.5, id="float"),
        pytest.param("text", "text", id="text"),
        pytest.param(b"text", b"text", id="bytes"),
        pytest.param(None, None, id="none"),
        pytest.param(Box("content"), Box("content"), id="object"),
        pytest.param({1, 2}, {1, 2}, id="set"),
        pytest.param((1, np.array(2)), [1, torch.tensor(2)], id="tuple_to_a_list"),
        pytest.param([np.array(1), "a"], [torch.tensor(1), "a"], id="list"),
        pytest.param(Point(np.array(1), 2), Point(torch.tensor(1), 2), id="named_tuple"),
        pytest.param({"a": np.array(1), "b": (2,)}, {"a": torch.tensor(1), "b": [2]}, id="dict"),
        pytest.param(OrderedDict(a=np.array(1)), OrderedDict(a=torch.tensor(1)), id="ordered_dict"),
        pytest.param(FrozenMap({"a": np.array(1)}), FrozenMap({"a": torch.tensor(1)}), id="frozen_map"),
        pytest.param(range(2), [0, 1], id="range"),
    ],
)
def test_without_batching_a_sample_is_converted_by_the_rule_of_its_type(
    Loader: Any, num_workers: int, sample: Any, expected: Any
) -> None:
    assert_same(expected, converted(Loader, sample, num_workers))


def test_without_batching_a_tensor_arrives_as_it_is(Loader: Any, num_workers: int) -> None:
    sample = marked(1.0, 2.0)
    result = converted(Loader, sample, num_workers)
    assert type(result) is Marked
    assert_same(sample, result)
    assert num_workers > 0 or sample is result


@pytest.mark.parametrize(
    "sample", [tagged(TaggedDict(a=np.array(1)), "mine"), tagged(TaggedList([np.array(1)]), "mine")]
)
def test_without_batching_a_container_keeps_its_attributes(Loader: Any, num_workers: int, sample: Any) -> None:
    result = converted(Loader, sample, num_workers)
    assert (type(sample), "mine") == (type(result), result.tag)


@processes_only
def test_without_batching_an_array_is_not_copied_in_the_main_process(Loader: Any, num_workers: int) -> None:
    array = np.zeros(3)
    converted(Loader, array, num_workers).fill_(1)
    assert array.tolist() == [0.0 if num_workers else 1.0] * 3


def test_without_batching_a_collate_function_gets_single_samples(Loader: Any, num_workers: int) -> None:
    loader = Loader(["a", "b"], batch_size=None, collate_fn=repr, **forked(num_workers))
    assert list(loader) == ["'a'", "'b'"]


def test_an_iterable_dataset_is_collated_by_the_same_function(Loader: Any, num_workers: int) -> None:
    loader = Loader(Stream(3), batch_size=2, collate_fn=repr, **forked(num_workers))
    copies = max(num_workers, 1)
    assert list(loader) == ["[0, 1]"] * copies + ["[2]"] * copies


@forked_only
def test_a_collate_function_may_be_any_callable(Loader: Any, num_workers: int) -> None:
    offset = types.SimpleNamespace(value=10)
    loader = Loader(
        [1, 2, 3],
        batch_size=2,
        collate_fn=lambda samples: sum(samples) + offset.value,
        **forked(num_workers),
    )
    assert list(loader) == [13, 13]
