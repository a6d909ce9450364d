"""The default rules: samples become batches by their types, with workers as without."""

from collections import OrderedDict, UserList, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.pairs import in_turn

from .batches import (
    Box,
    CountingDict,
    FrozenMap,
    Marked,
    NamedMap,
    Point,
    TaggedDict,
    TaggedList,
    TaggedOrderedDict,
    in_tens,
    marked,
    register_boxes,
    tagged,
    unboxed,
)
from .equality import assert_same
from .running import (
    WIDTHS,
    failure_of,
    forked,
    forked_only,
    processes_only,
    small_and_large,
    told,
    with_and_without_workers,
)
from .torches import error_of_a_cast

pytestmark = with_and_without_workers

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
INTEGERS = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
OTHERS = [torch.bool, torch.complex64, torch.complex128]


def name_of(value: Any) -> str:
    return str(value).removeprefix("torch.")


def batch_of(Loader: Any, samples: list[Any], num_workers: int, **options: Any) -> Any:
    """The one batch that holds all the samples."""
    (batch,) = Loader(samples, batch_size=len(samples), **options, **forked(num_workers))
    return batch


def refusal_of(Loader: Any, samples: list[Any], num_workers: int, error: type[Exception]) -> str:
    loader = Loader(samples, batch_size=len(samples), **forked(num_workers))
    text = told(failure_of(error, lambda: list(loader)))
    if num_workers > 0:
        assert text.startswith(f"Caught {error.__name__} in DataLoader worker process 0.\nOriginal Traceback")
    return text


@pytest.mark.parametrize(("dtype", "width"), in_turn(FLOATS + INTEGERS + OTHERS, WIDTHS), ids=name_of)
def test_tensors_of_any_dtype_are_stacked(Loader: Any, num_workers: int, dtype: torch.dtype, width: int) -> None:
    row = torch.tensor([[1, 0, 3], [0, 5, 6]]).repeat(1, width)
    samples = [row.add(number).to(dtype) for number in range(3)]
    assert_same(torch.stack(samples), batch_of(Loader, samples, num_workers))


def test_not_a_number_and_negative_zero_keep_their_bits(Loader: Any, num_workers: int) -> None:
    samples = [torch.tensor([float("nan"), -0.0]), torch.tensor([float("-inf"), 1e-45])]
    assert_same(torch.stack(samples), batch_of(Loader, samples, num_workers))


def test_tensors_without_dimensions_become_a_vector(Loader: Any, num_workers: int) -> None:
    samples = [torch.tensor(1.5), torch.tensor(2.5)]
    assert_same(torch.tensor([1.5, 2.5]), batch_of(Loader, samples, num_workers))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
def test_tensors_without_elements_keep_their_shape(Loader: Any, num_workers: int, shape: tuple[int]) -> None:
    batch = batch_of(Loader, [torch.empty(shape), torch.empty(shape)], num_workers)
    assert ((2, *shape), torch.float32) == (tuple(batch.shape), batch.dtype)


@pytest.mark.parametrize(
    "change",
    [torch.t, lambda grid: grid[:, ::2], lambda grid: grid[:, :1].expand(-1, 6), lambda grid: grid.flip(0)],
    ids=["transposed", "strided", "expanded", "flipped"],
)
@small_and_large
def test_tensors_in_unusual_memory_layout_are_stacked(Loader: Any, num_workers: int, width: int, change: Any) -> None:
    grid = torch.arange(4 * width).reshape(width, 4)
    samples = [change(grid), change(grid + 1)]
    batch = batch_of(Loader, samples, num_workers)
    assert_same(torch.stack(samples), batch)
    assert batch.is_contiguous()


def test_channels_last_images_are_stacked(Loader: Any, num_workers: int) -> None:
    image = torch.rand(1, 3, 4, 5).to(memory_format=torch.channels_last)[0]
    assert_same(torch.stack([image, image]), batch_of(Loader, [image, image], num_workers))


def test_a_single_sample_gains_a_dimension(Loader: Any, num_workers: int) -> None:
    assert_same(torch.tensor([[1, 2]]), batch_of(Loader, [torch.tensor([1, 2])], num_workers))


@small_and_large
def test_a_tensor_subclass_stays_one(Loader: Any, num_workers: int, width: int) -> None:
    batch = batch_of(Loader, [marked(1.0).repeat(width), marked(3.0).repeat(width)], num_workers)
    assert type(batch) is Marked
    assert_same(marked(1.0, 3.0)[:, None].repeat(1, width), batch)


@small_and_large
def test_integers_after_floats_become_floats(Loader: Any, num_workers: int, width: int) -> None:
    batch = batch_of(Loader, [torch.ones(width), torch.ones(width, dtype=torch.int64)], num_workers)
    assert_same(torch.ones(2, width), batch)


def test_mixed_dtypes_are_promoted_in_the_main_process_and_follow_the_first_in_a_worker(
    Loader: Any, num_workers: int
) -> None:
    batch = batch_of(Loader, [torch.ones(2), torch.ones(2, dtype=torch.float64)], num_workers)
    assert_same(torch.ones(2, 2, dtype=torch.float32 if num_workers else torch.float64), batch)


def test_integers_before_floats_are_promoted_in_the_main_process_and_refused_in_a_worker(
    Loader: Any, num_workers: int
) -> None:
    samples = [torch.ones(2, dtype=torch.int64), torch.full((2,), 1.5)]
    if num_workers == 0:
        assert_same(torch.tensor([[1.0, 1.0], [1.5, 1.5]]), batch_of(Loader, samples, num_workers))
    else:
        assert "can't be cast to the desired output type Long" in refusal_of(
            Loader, samples, num_workers, error_of_a_cast()
        )


@small_and_large
def test_tensors_of_unequal_shapes_are_refused(Loader: Any, num_workers: int, width: int) -> None:
    text = refusal_of(Loader, [torch.ones(width), torch.ones(width + 1)], num_workers, RuntimeError)
    assert (
        f"stack expects each tensor to be equal size, but got [{width}] at entry 0 and [{width + 1}] at entry 1" in text
    )


@small_and_large
def test_tensors_that_become_smaller_are_refused(Loader: Any, num_workers: int, width: int) -> None:
    assert refusal_of(Loader, [torch.ones(width), torch.ones(width - 1)], num_workers, RuntimeError)


@forked_only
def test_sparse_tensors_are_refused(Loader: Any, num_workers: int) -> None:
    text = refusal_of(Loader, [torch.eye(2).to_sparse()] * 2, num_workers, RuntimeError)
    assert (
        "Batches of sparse tensors are not currently supported by the default collate_fn; "
        "please provide a custom collate_fn to handle them appropriately."
    ) in text


@pytest.mark.thorough  # torch imports its compiler for a nested tensor, and all later forks copy that
def test_nested_tensors_are_refused(Loader: Any, num_workers: int) -> None:
    sample = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    text = refusal_of(Loader, [sample, sample], num_workers, RuntimeError)
    assert (
        "Batches of nested tensors are not currently supported by the default collate_fn; "
        "please provide a custom collate_fn to handle them appropriately."
    ) in text


@processes_only
def test_tensors_that_require_a_gradient_are_stacked_in_the_main_process_only(Loader: Any, num_workers: int) -> None:
    samples = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    if num_workers == 0:
        assert batch_of(Loader, samples, num_workers).grad_fn is not None
    else:
        text = refusal_of(Loader, samples, num_workers, RuntimeError)
        assert "don't support automatic differentiation, but one of the arguments requires grad" in text


ARRAYS = ["uint8", "int16", "int64", "uint16", "float16", "float32", "float64", "bool", "complex64"]


@pytest.mark.parametrize(("dtype", "width"), in_turn(ARRAYS, WIDTHS))
def test_arrays_become_tensors_of_their_dtype(Loader: Any, num_workers: int, width: int, dtype: str) -> None:
    samples = [(np.arange(2 * width) % 1000).reshape(width, 2).astype(dtype), np.ones((width, 2), dtype=dtype)]
    assert_same(torch.from_numpy(np.stack(samples)), batch_of(Loader, samples, num_workers))


def test_arrays_without_dimensions_become_a_vector(Loader: Any, num_workers: int) -> None:
    samples = [np.array(1.5), np.array(2.5)]
    assert_same(torch.tensor([1.5, 2.5], dtype=torch.float64), batch_of(Loader, samples, num_workers))


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.array([None, 1], dtype=object), "object"),
        (np.array(["a", "bc"]), "<U2"),
        (np.array([b"a"]), "|S1"),
    ],
    ids=["objects", "text", "bytes"],
)
def test_arrays_of_objects_and_text_are_refused(Loader: Any, num_workers: int, array: np.ndarray, found: str) -> None:
    text = refusal_of(Loader, [array, array], num_workers, TypeError)
    assert f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {found}" in text


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([np.float32(1.5), np.float32(2)], torch.tensor([1.5, 2.0]), id="numpy_float32"),
        pytest.param(
            [np.float64(1.5), np.float64(2)],
            torch.tensor([1.5, 2.0], dtype=torch.float64),
            id="numpy_float64",
        ),
        pytest.param([np.int16(1), np.int16(2)], torch.tensor([1, 2], dtype=torch.int16), id="numpy_int16"),
        pytest.param([np.int64(1), np.int64(2)], torch.tensor([1, 2]), id="numpy_int64"),
        pytest.param(
            [np.bool_(True), np.bool_(False)],
            torch.tensor([True, False]),
            id="numpy_bool",
            marks=pytest.mark.filterwarnings("ignore:In future, it will be an error for 'np.bool'"),  # by older torch
        ),
        pytest.param([1.5, 2.5], torch.tensor([1.5, 2.5], dtype=torch.float64), id="floats"),
        pytest.param([1.5, 2], torch.tensor([1.5, 2.0], dtype=torch.float64), id="float_before_int"),
        pytest.param([1, 2.5], torch.tensor([1.0, 2.5]), id="int_before_float"),
        pytest.param([1, 2**40], torch.tensor([1, 2**40]), id="ints"),
        pytest.param([True, False], torch.tensor([True, False]), id="bools"),
        pytest.param(["a", "ü"], ["a", "ü"], id="text"),
        pytest.param([b"a", b"\0"], [b"a", b"\0"], id="bytes"),
        pytest.param([{"a": 1}, {"a": 2}], {"a": torch.tensor([1, 2])}, id="dicts"),
        pytest.param([{"a": 1}, {"a": 2, "b": 3}], {"a": torch.tensor([1, 2])}, id="keys_of_the_first"),
        pytest.param([{"b": 1, "a": "x"}] * 2, {"b": torch.tensor([1, 1]), "a": ["x", "x"]}, id="key_order"),
        pytest.param([{}, {}], {}, id="empty_dicts"),
        pytest.param(
            [OrderedDict(b=1, a=2)] * 2,
            OrderedDict(b=torch.tensor([1, 1]), a=torch.tensor([2, 2])),
            id="ordered_dicts",
        ),
        pytest.param(
            [FrozenMap({"a": 1}), FrozenMap({"a": 2})],
            FrozenMap({"a": torch.tensor([1, 2])}),
            id="frozen_maps",
        ),
        pytest.param(
            [NamedMap("first", {"a": 1}), NamedMap("second", {"a": 2})],
            {"a": torch.tensor([1, 2])},
            id="maps_that_cannot_be_rebuilt",
        ),
        pytest.param([(1, "a"), (2, "b")], [torch.tensor([1, 2]), ("a", "b")], id="tuples_to_a_list"),
        pytest.param([[1, "a"], [2, "b"]], [torch.tensor([1, 2]), ("a", "b")], id="lists"),
        pytest.param([(), ()], [], id="empty_tuples"),
        pytest.param([range(2), range(2)], [torch.tensor([0, 0]), torch.tensor([1, 1])], id="ranges"),
        pytest.param([Point(1, "a"), Point(2, "b")], Point(torch.tensor([1, 2]), ("a", "b")), id="named_tuples"),
        pytest.param(
            [UserList([1, 2]), UserList([3, 4])],
            UserList([torch.tensor([1, 3]), torch.tensor([2, 4])]),
            id="user_lists",
        ),
        pytest.param(
            [{"p": (Point([1, 2.5], {"q": np.int8(3)}),), "s": "a"}] * 2,
            {
                "p": [
                    Point(
                        [torch.tensor([1, 1]), torch.tensor([2.5, 2.5], dtype=torch.float64)],
                        {"q": torch.tensor([3, 3], dtype=torch.int8)},
                    )
                ],
                "s": ["a", "a"],
            },
            id="nested",
        ),
    ],
)
def test_samples_become_a_batch_by_the_rule_of_their_type(
    Loader: Any, num_workers: int, samples: list[Any], expected: Any
) -> None:
    assert_same(expected, batch_of(Loader, samples, num_workers))


@pytest.mark.parametrize("container", [defaultdict, CountingDict])
def test_a_defaultdict_stays_one(Loader: Any, num_workers: int, container: Any) -> None:
    batch = batch_of(Loader, [container(int, a=1), container(list, a=2)], num_workers)
    assert_same(container(int, a=torch.tensor([1, 2])), batch)
    assert batch.default_factory is int


@pytest.mark.parametrize("container", [TaggedDict, TaggedOrderedDict])
def test_a_mapping_keeps_the_attributes_of_the_first_sample(Loader: Any, num_workers: int, container: Any) -> None:
    batch = batch_of(Loader, [tagged(container(a=1), "first"), tagged(container(a=2), "second")], num_workers)
    assert_same(container(a=torch.tensor([1, 2])), batch)
    assert batch.tag == "first"


def test_a_list_keeps_the_attributes_of_the_first_sample(Loader: Any, num_workers: int) -> None:
    samples = [tagged(TaggedList([1, 2]), "first"), tagged(TaggedList([3, 4]), "second")]
    batch = batch_of(Loader, samples, num_workers)
    assert_same(TaggedList([torch.tensor([1, 3]), torch.tensor([2, 4])]), batch)
    assert batch.tag == "first"


def test_the_samples_themselves_are_not_changed(Loader: Any, num_workers: int) -> None:
    samples = [{"a": [1, 2]}, {"a": [3, 4]}]
    batch_of(Loader, samples, num_workers)
    assert samples == [{"a": [1, 2]}, {"a": [3, 4]}]


def test_a_key_that_is_missing_in_a_later_sample_is_a_key_error(Loader: Any, num_workers: int) -> None:
    assert "'b'" in refusal_of(Loader, [{"a": 1, "b": 2}, {"a": 3}], num_workers, KeyError)


@pytest.mark.parametrize("container", [list, tuple])
def test_sequences_of_unequal_length_are_refused(Loader: Any, num_workers: int, container: Any) -> None:
    text = refusal_of(Loader, [container([1, 2]), container([1])], num_workers, RuntimeError)
    assert "each element in list of batch should be of equal size" in text


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        (None, "<class 'NoneType'>"),
        (1j, "<class 'complex'>"),
        ({1}, "<class 'set'>"),
        (Box(1), f"<class '{Box.__module__}.Box'>"),
    ],
    ids=["none", "complex", "set", "object"],
)
def test_samples_without_a_rule_are_refused(Loader: Any, num_workers: int, sample: Any, found: str) -> None:
    text = refusal_of(Loader, [sample, sample], num_workers, TypeError)
    assert f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {found}" in text


@forked_only
def test_a_rule_for_an_own_type_can_be_registered(
    Loader: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, Box, unboxed)
    batch = batch_of(Loader, [(Box("a"), 1), (Box("b"), 2)], num_workers)
    assert_same([["a", "b"], torch.tensor([1, 2])], batch)


@forked_only
def test_the_rule_for_tensors_can_be_replaced(Loader: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, in_tens)
    batch = batch_of(Loader, [{"x": torch.tensor([1]), "y": np.array(2)}] * 2, num_workers)
    assert_same({"x": torch.tensor([[10], [10]]), "y": torch.tensor([20, 20])}, batch)


@forked_only
def test_a_registered_rule_holds_for_subclasses_of_its_type(
    Loader: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, dict, lambda samples, **_: "a dict")
    assert batch_of(Loader, [OrderedDict(a=1)] * 3, num_workers) == "a dict"


@processes_only
def test_a_rule_registered_by_the_init_function_holds_in_its_worker(Loader: Any, num_workers: int) -> None:
    samples = [(Box("a"), 1), (Box("b"), 2)]
    if num_workers == 0:
        assert "Box" in refusal_of(Loader, samples, num_workers, TypeError)
    else:
        batch = batch_of(Loader, samples, num_workers, worker_init_fn=register_boxes)
        assert_same([["a", "b"], torch.tensor([1, 2])], batch)
    assert Box not in default_collate_fn_map


@processes_only
def test_a_rule_registered_in_mid_epoch_holds_for_the_next_batch_of_the_same_process(
    Loader: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterator = iter(Loader([torch.tensor(1)] * 2, **forked(num_workers)))
    before = next(iterator)
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, in_tens)
    assert [1, 1 if num_workers else 10] == [int(before), int(next(iterator))]


def test_the_default_collate_function_can_be_given_by_name(Loader: Any, num_workers: int) -> None:
    batch = batch_of(Loader, [(1, 2.5), (2, 3.5)], num_workers, collate_fn=default_collate)
    assert_same([torch.tensor([1, 2]), torch.tensor([2.5, 3.5], dtype=torch.float64)], batch)
