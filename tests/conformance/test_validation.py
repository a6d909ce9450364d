"""What the constructor refuses, in which order and words; the attributes afterwards; copies of a loader."""

import copy
import multiprocessing
import pickle
import re
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from .batches import into_array
from .datasets import Numbers, Stream
from .running import forked, forked_only, numbers, processes_only, with_and_without_workers
from .torches import message

NEGATIVE_WORKERS = "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
NEGATIVE_TIMEOUT = "timeout option should be non-negative"
PREFETCH_WITHOUT_WORKERS = (
    "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to enable "
    "multiprocessing, otherwise set prefetch_factor to None."
)
NEGATIVE_PREFETCH = "prefetch_factor option should be non-negative"
PERSISTENT_WITHOUT_WORKERS = "persistent_workers option needs num_workers > 0"
CONTEXT_WITHOUT_WORKERS = (
    "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got num_workers=0"
)
UNKNOWN_CONTEXT = (
    "multiprocessing_context option should specify a valid start method in "
    f"{torch.multiprocessing.get_all_start_methods()!r}, but got multiprocessing_context='teleport'"
)
SAMPLER_AND_SHUFFLE = "sampler option is mutually exclusive with shuffle"
BATCH_SAMPLER_AND_MORE = "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
NO_BATCH_AND_DROP_LAST = "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
ONE_BATCH = [[0, 1]]

REFUSED = [
    pytest.param({"num_workers": -1}, NEGATIVE_WORKERS, id="negative_workers"),
    pytest.param({"timeout": -1}, NEGATIVE_TIMEOUT, id="negative_timeout"),
    pytest.param({"timeout": -0.5}, NEGATIVE_TIMEOUT, id="negative_fraction_of_a_timeout"),
    pytest.param({"prefetch_factor": 2}, PREFETCH_WITHOUT_WORKERS, id="prefetch_without_workers"),
    pytest.param({"num_workers": 1, "prefetch_factor": -1}, NEGATIVE_PREFETCH, id="negative_prefetch"),
    pytest.param({"persistent_workers": True}, PERSISTENT_WITHOUT_WORKERS, id="persistent_without_workers"),
    pytest.param({"multiprocessing_context": "fork"}, CONTEXT_WITHOUT_WORKERS, id="context_without_workers"),
    pytest.param({"num_workers": 1, "multiprocessing_context": "teleport"}, UNKNOWN_CONTEXT, id="unknown_context"),
    pytest.param({"sampler": [0], "shuffle": True}, SAMPLER_AND_SHUFFLE, id="sampler_and_shuffle"),
    pytest.param({"batch_sampler": ONE_BATCH, "batch_size": 2}, BATCH_SAMPLER_AND_MORE, id="batch_sampler_and_size"),
    pytest.param({"batch_sampler": ONE_BATCH, "shuffle": True}, BATCH_SAMPLER_AND_MORE, id="batch_sampler_and_shuffle"),
    pytest.param({"batch_sampler": ONE_BATCH, "sampler": [0]}, BATCH_SAMPLER_AND_MORE, id="batch_sampler_and_sampler"),
    pytest.param({"batch_sampler": ONE_BATCH, "drop_last": True}, BATCH_SAMPLER_AND_MORE, id="batch_sampler_and_drop"),
    pytest.param({"batch_size": None, "drop_last": True}, NO_BATCH_AND_DROP_LAST, id="no_batch_and_drop"),
    *(
        pytest.param(
            {"batch_size": size},
            f"batch_size should be a positive integer value, but got batch_size={size}",
            id=f"batch_size_{size}",
        )
        for size in (0, -1, 1.5, True, "2")
    ),
    pytest.param(
        {"drop_last": 1},
        "drop_last should be a boolean value, but got drop_last=1",
        id="drop_last_is_a_number",
    ),
]

FIRST_OF_SEVERAL = [
    ({"num_workers": -1, "timeout": -1}, NEGATIVE_WORKERS),
    ({"num_workers": -1, "prefetch_factor": -1}, NEGATIVE_WORKERS),
    ({"timeout": -1, "prefetch_factor": 2}, NEGATIVE_TIMEOUT),
    ({"prefetch_factor": 2, "persistent_workers": True}, PREFETCH_WITHOUT_WORKERS),
    ({"prefetch_factor": -1}, PREFETCH_WITHOUT_WORKERS),
    ({"persistent_workers": True, "multiprocessing_context": "fork"}, PERSISTENT_WITHOUT_WORKERS),
    ({"multiprocessing_context": "teleport"}, CONTEXT_WITHOUT_WORKERS),
    ({"multiprocessing_context": "fork", "sampler": [0], "shuffle": True}, CONTEXT_WITHOUT_WORKERS),
    ({"sampler": [0], "shuffle": True, "batch_sampler": ONE_BATCH}, SAMPLER_AND_SHUFFLE),
    ({"batch_sampler": ONE_BATCH, "batch_size": None, "drop_last": True}, BATCH_SAMPLER_AND_MORE),
    ({"batch_sampler": ONE_BATCH, "batch_size": 0}, BATCH_SAMPLER_AND_MORE),
    (
        {"batch_size": 0, "drop_last": 1},
        "batch_size should be a positive integer value, but got batch_size=0",
    ),
]

FROZEN = ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]


def refusal_of(Loader: Any, dataset: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        Loader(dataset, **options)
    return str(caught.value)


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_a_bad_option_is_refused_in_exact_words(Loader: Any, options: dict[str, Any], text: str) -> None:
    assert text == refusal_of(Loader, Numbers(4), **options)


@pytest.mark.parametrize(("options", "text"), FIRST_OF_SEVERAL)
def test_of_several_bad_options_the_first_in_order_is_named(Loader: Any, options: dict[str, Any], text: str) -> None:
    assert text == refusal_of(Loader, Numbers(4), **options)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"shuffle": True}, "shuffle"),
        ({"sampler": [0]}, "sampler"),
        ({"batch_sampler": ONE_BATCH}, "batch_sampler"),
        ({"shuffle": True, "sampler": [0], "batch_sampler": ONE_BATCH}, "shuffle"),
        ({"sampler": [0], "batch_sampler": ONE_BATCH, "batch_size": 2}, "sampler"),
    ],
)
def test_an_iterable_dataset_refuses_an_order_from_outside(Loader: Any, options: dict[str, Any], option: str) -> None:
    found = f"{option}={options[option]}"
    text = f"DataLoader with IterableDataset: expected unspecified {option} option, but got {found}"
    assert text == refusal_of(Loader, Stream(4), **options)


@pytest.mark.parametrize("shuffle", [False, None])
def test_an_iterable_dataset_accepts_no_shuffling(Loader: Any, shuffle: bool | None) -> None:
    assert [int(batch) for batch in Loader(Stream(3), shuffle=shuffle)] == [0, 1, 2]


def test_an_iterable_dataset_with_an_unhashable_shuffle_is_a_type_error(Loader: Any) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        Loader(Stream(3), shuffle=[])


def test_a_context_that_is_no_context_is_a_type_error(Loader: Any) -> None:
    text = (
        "multiprocessing_context option should be a valid context object or a string specifying the start "
        "method, but got multiprocessing_context=3"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        Loader(Numbers(4), num_workers=1, multiprocessing_context=3)


def test_an_empty_dataset_cannot_be_shuffled(Loader: Any) -> None:
    text = "num_samples should be a positive integer value, but got num_samples=0"
    assert text == refusal_of(Loader, Numbers(0), shuffle=True)


# The original's unfinished iterator stumbles over its own missing attributes when it is deleted
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_prefetching_is_refused_only_when_iterated(Loader: Any) -> None:
    loader = Loader(Numbers(4), **forked(1), prefetch_factor=0)
    with pytest.raises(
        AssertionError, match=message("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    ):
        iter(loader)


def test_a_timeout_without_workers_is_refused_only_when_iterated(Loader: Any) -> None:
    loader = Loader(Numbers(4), timeout=1)
    with pytest.raises(AssertionError, match=message("_SingleProcessDataLoaderIter requires timeout == 0")):
        iter(loader)


@forked_only
def test_the_first_thirteen_arguments_can_be_given_by_position(Loader: Any) -> None:
    dataset, sampler, generator = Numbers(8), [1, 0], torch.Generator()
    loader = Loader(dataset, 2, False, sampler, None, 1, into_array, False, True, 3, print, "fork", generator)
    expected = (dataset, 2, sampler, 1, into_array, False, True, 3, print, generator)
    assert expected == (
        loader.dataset,
        loader.batch_size,
        loader.sampler,
        loader.num_workers,
        loader.collate_fn,
        loader.pin_memory,
        loader.drop_last,
        loader.timeout,
        loader.worker_init_fn,
        loader.generator,
    )
    assert isinstance(loader.multiprocessing_context, multiprocessing.get_context("fork").__class__)


def test_a_fourteenth_argument_by_position_is_a_type_error(Loader: Any) -> None:
    with pytest.raises(TypeError):
        Loader(Numbers(8), 2, False, None, None, 1, None, False, True, 0, None, "fork", None, 2)


def test_the_defaults_can_be_read_from_the_attributes(Loader: Any) -> None:
    loader = Loader(Numbers(4))
    expected = {
        "batch_size": 1,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "pin_memory_device": "",
        "timeout": 0,
        "worker_init_fn": None,
        "multiprocessing_context": None,
        "in_order": True,
        "generator": None,
        "drop_last": False,
        "persistent_workers": False,
    }
    assert expected == {name: getattr(loader, name) for name in expected}


def test_each_worker_prefetches_two_batches_unless_told_otherwise(Loader: Any) -> None:
    assert (
        Loader(Numbers(4), num_workers=1).prefetch_factor,
        Loader(Numbers(4), num_workers=1, prefetch_factor=5).prefetch_factor,
    ) == (2, 5)


def test_samplers_are_made_for_what_was_asked(Loader: Any) -> None:
    generator = torch.Generator()
    in_sequence = Loader(Numbers(4), batch_size=3, drop_last=True)
    shuffled = Loader(Numbers(4), shuffle=True, generator=generator)
    assert type(in_sequence.sampler) is SequentialSampler
    assert type(in_sequence.batch_sampler) is BatchSampler
    assert in_sequence.sampler is in_sequence.batch_sampler.sampler
    assert (in_sequence.batch_sampler.batch_size, in_sequence.batch_sampler.drop_last) == (3, True)
    assert type(shuffled.sampler) is RandomSampler
    assert generator is shuffled.sampler.generator


def test_without_batching_there_is_no_batch_sampler(Loader: Any) -> None:
    loader = Loader(Numbers(4), batch_size=None)
    assert (loader.batch_size, loader.batch_sampler, loader.drop_last) == (None, None, False)
    assert type(loader.sampler) is SequentialSampler


def test_a_batch_sampler_leaves_no_batch_size(Loader: Any) -> None:
    loader = Loader(Numbers(4), batch_sampler=ONE_BATCH)
    assert (loader.batch_size, loader.batch_sampler, loader.drop_last) == (None, ONE_BATCH, False)


def test_the_collate_function_defaults_to_collating_or_converting(Loader: Any) -> None:
    assert Loader(Numbers(4)).collate_fn is torch.utils.data.default_collate
    assert Loader(Numbers(4), batch_sampler=ONE_BATCH).collate_fn is torch.utils.data.default_collate
    assert Loader(Numbers(4), batch_size=None).collate_fn is torch.utils.data.default_convert


@pytest.mark.parametrize("attribute", FROZEN)
def test_what_the_samplers_were_made_from_cannot_be_set_later(Loader: Any, attribute: str) -> None:
    loader = Loader(Numbers(4))
    before = getattr(loader, attribute)
    with pytest.raises(
        ValueError, match=f"^{attribute} attribute should not be set after {Loader.__name__} is initialized$"
    ):
        setattr(loader, attribute, before)
    assert before is getattr(loader, attribute)


def test_a_subclass_is_named_when_an_attribute_cannot_be_set(Loader: Any) -> None:
    class Mine(Loader):
        pass

    with pytest.raises(ValueError, match=r"^dataset attribute should not be set after Mine is initialized$"):
        Mine(Numbers(4)).dataset = Numbers(5)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("num_workers", 2),
        ("prefetch_factor", 4),
        ("pin_memory", True),
        ("pin_memory_device", "cuda"),
        ("timeout", 5),
        ("worker_init_fn", print),
        ("in_order", False),
        ("generator", torch.Generator()),
        ("collate_fn", into_array),
        ("something_else", "of a user"),
    ],
)
def test_all_other_attributes_can_be_set_later(Loader: Any, attribute: str, value: Any) -> None:
    loader = Loader(Numbers(4))
    setattr(loader, attribute, value)
    assert value is getattr(loader, attribute)


def test_a_collate_function_set_later_is_used_from_the_next_epoch_on(Loader: Any) -> None:
    loader = Loader(Numbers(4), batch_size=2)
    first = next(iter(loader))
    loader.collate_fn = sum
    assert (first.tolist(), int(next(iter(loader)))) == ([0, 1], 1)


def test_workers_set_later_are_used_from_the_next_epoch_on(Loader: Any) -> None:
    loader = Loader(Numbers(4), batch_size=2)
    loader.num_workers, loader.prefetch_factor, loader.multiprocessing_context = 2, 1, "fork"
    assert numbers(loader) == [[0, 1], [2, 3]]


def test_a_context_given_by_name_is_kept_as_an_object(Loader: Any) -> None:
    loader = Loader(Numbers(4), num_workers=1, multiprocessing_context="spawn")
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_a_context_given_as_an_object_is_kept_itself(Loader: Any) -> None:
    context = multiprocessing.get_context("forkserver")
    assert context is Loader(Numbers(4), num_workers=1, multiprocessing_context=context).multiprocessing_context


def test_a_context_can_be_set_and_taken_away_later(Loader: Any) -> None:
    loader = Loader(Numbers(4), num_workers=1)
    loader.multiprocessing_context = "fork"
    assert loader.multiprocessing_context.get_start_method() == "fork"
    loader.multiprocessing_context = None
    assert loader.multiprocessing_context is None


@forked_only
def test_a_bad_context_set_later_is_refused_and_the_old_one_stays(Loader: Any) -> None:
    loader = Loader(Numbers(4), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ValueError, match=f"^{re.escape(UNKNOWN_CONTEXT)}$"):
        loader.multiprocessing_context = "teleport"
    with pytest.raises(TypeError, match=r"^multiprocessing_context option should be a valid context object"):
        loader.multiprocessing_context = object()
    assert loader.multiprocessing_context.get_start_method() == "fork"


def test_a_context_set_later_without_workers_is_refused(Loader: Any) -> None:
    loader = Loader(Numbers(4))
    with pytest.raises(ValueError, match=f"^{re.escape(CONTEXT_WITHOUT_WORKERS)}$"):
        loader.multiprocessing_context = "fork"


@processes_only
def test_the_class_can_be_subscripted_and_called_so(Loader: Any) -> None:
    loader = Loader[torch.Tensor](Numbers(4), batch_size=2)
    assert type(loader) is Loader
    assert numbers(loader) == [[0, 1], [2, 3]]


def test_a_loader_is_an_instance_of_the_original_class(Loader: Any) -> None:
    assert isinstance(Loader(Numbers(4)), torch.utils.data.DataLoader)


@with_and_without_workers
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_gives_the_same_batches(Loader: Any, duplicate: Any, num_workers: int) -> None:
    generator = torch.Generator().manual_seed(5)
    loader = Loader(Numbers(7), batch_size=2, shuffle=True, generator=generator, **forked(num_workers))
    twin = duplicate(loader)
    state = generator.get_state()
    expected = numbers(loader)
    generator.set_state(state)
    assert type(loader) is type(twin)
    assert expected == numbers(twin)


@with_and_without_workers
def test_an_iterator_cannot_be_pickled(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(4), **forked(num_workers)))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iterator)


@processes_only
def test_a_loader_with_an_open_persistent_iterator_cannot_be_pickled(Loader: Any) -> None:
    loader = Loader(Numbers(4), **forked(1), persistent_workers=True)
    next(iter(loader))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(loader)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's unfinished iterator
def test_a_float_as_number_of_workers_fails_when_an_epoch_begins(Loader: Any) -> None:
    loader = Loader(Numbers(4), num_workers=2.0)
    assert loader.num_workers == 2.0
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        iter(loader)


def test_zero_as_a_float_means_no_workers(Loader: Any) -> None:
    assert numbers(Loader(Numbers(4), batch_size=2, num_workers=0.0)) == [[0, 1], [2, 3]]


@forked_only
def test_true_as_number_of_workers_means_one(Loader: Any) -> None:
    assert numbers(Loader(Numbers(4), batch_size=2, num_workers=True)) == [[0, 1], [2, 3]]
