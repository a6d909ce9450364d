"""What other libraries reach for: subclasses, private names that became public by use, profiler ranges."""

import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from .datasets import CountingBatches, Numbers, Stream, Witness
from .running import forked, forked_only, numbers, processes_only, with_and_without_workers


class Endless:
    """A batch sampler that repeats another one without end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


@with_and_without_workers
def test_an_iterator_is_an_instance_of_the_original_base(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(4), **forked(num_workers)))
    assert isinstance(iterator, _BaseDataLoaderIter)
    assert iterator is iter(iterator)


@with_and_without_workers
def test_an_iterator_has_the_length_of_its_loader(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(5), batch_size=2, **forked(num_workers)))
    next(iterator)
    assert len(iterator) == 3


@with_and_without_workers
def test_an_iterator_counts_the_batches_it_gave(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(5), batch_size=2, **forked(num_workers)))
    counts = [iterator._num_yielded]
    for _ in iterator:
        counts.append(iterator._num_yielded)
    assert counts == [0, 1, 2, 3]


@with_and_without_workers
def test_an_iterator_tells_its_base_seed(Loader: Any, num_workers: int) -> None:
    generator = torch.Generator().manual_seed(2)
    expected = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    loader = Loader(Numbers(4), generator=generator.manual_seed(2), **forked(num_workers))
    assert expected == iter(loader)._base_seed


@processes_only
def test_an_iterator_tells_its_workers(Loader: Any) -> None:
    iterator = iter(Loader(Witness(4), **forked(2)))
    expected = [worker.pid for worker in iterator._workers]
    assert [True, True] == [worker.is_alive() for worker in iterator._workers]
    assert expected == [int(next(iterator)["pid"]), int(next(iterator)["pid"])]


@with_and_without_workers
def test_only_a_persistent_loader_keeps_its_iterator(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(4), **forked(num_workers))
    kept = [loader._iterator]
    iterator = iter(loader)
    kept.append(loader._iterator)
    assert [None, None] == kept
    assert len(list(iterator)) == 4


def test_a_persistent_loader_keeps_its_iterator(Loader: Any) -> None:
    loader = Loader(Numbers(4), persistent_workers=True, **forked(1))
    before = loader._iterator
    iterator = iter(loader)
    assert before is None
    assert iterator is loader._iterator


@processes_only
def test_taking_the_iterator_of_a_persistent_loader_away_makes_new_workers(Loader: Any) -> None:
    loader = Loader(Witness(2), persistent_workers=True, **forked(1))
    first = {int(batch["pid"]) for batch in loader}
    loader._iterator = None
    second = {int(batch["pid"]) for batch in loader}
    assert (1, 1, set()) == (len(first), len(second), first & second)


@with_and_without_workers
def test_the_index_sampler_is_what_gives_an_index_a_batch(Loader: Any, num_workers: int) -> None:
    batched = Loader(Numbers(4), batch_size=2, **forked(num_workers))
    single = Loader(Numbers(4), batch_size=None, **forked(num_workers))
    assert batched.batch_sampler is batched._index_sampler
    assert single.sampler is single._index_sampler
    assert (True, False) == (batched._auto_collation, single._auto_collation)


def test_the_kind_of_the_dataset_is_told(Loader: Any) -> None:
    assert _DatasetKind.Map == Loader(Numbers(4))._dataset_kind
    assert _DatasetKind.Iterable == Loader(Stream(4))._dataset_kind


@pytest.mark.quick(Loader="headrace", num_workers=0)
@with_and_without_workers
def test_each_batch_is_a_range_of_the_profiler(Loader: Any, num_workers: int) -> None:
    iterator = iter(Loader(Numbers(3), **forked(num_workers)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert numbers(iterator) == [[0], [1], [2]]
    ranges = [event for event in profile.key_averages() if "enumerate(DataLoader)" in event.key]
    # One range for each batch and one for the end
    assert [4] == [event.count for event in ranges]


@with_and_without_workers
def test_a_subclass_can_wrap_the_iteration(Loader: Any, num_workers: int) -> None:
    class Doubling(Loader):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for batch in super().__iter__():
                yield batch * 2

    loader = Doubling(Numbers(4), batch_size=2, **forked(num_workers))
    assert [numbers(loader), numbers(loader)] == [[[0, 2], [4, 6]]] * 2


@with_and_without_workers
def test_a_subclass_can_make_the_iterator(Loader: Any, num_workers: int) -> None:
    made = []

    class Recording(Loader):
        def _get_iterator(self) -> Any:
            made.append(super()._get_iterator())
            return made[-1]

    loader = Recording(Numbers(4), batch_size=2, **forked(num_workers))
    iterator = iter(loader)
    assert [iterator] == made
    assert numbers(iterator) == [[0, 1], [2, 3]]


def test_a_persistent_subclass_makes_the_iterator_once(Loader: Any) -> None:
    made = []

    class Recording(Loader):
        def _get_iterator(self) -> Any:
            made.append(super()._get_iterator())
            return made[-1]

    loader = Recording(Numbers(2), persistent_workers=True, **forked(1))
    assert [numbers(loader), numbers(loader)] == [[[0], [1]]] * 2
    assert len(made) == 1
    made.clear()  # classes are freed late, and would keep the iterator as long


def test_an_iterator_of_a_subclass_may_be_anything(Loader: Any) -> None:
    class Fake(Loader):
        def _get_iterator(self) -> Any:
            return iter(["not", "loaded"])

    assert list(Fake(Numbers(4))) == ["not", "loaded"]


@with_and_without_workers
def test_a_loader_can_be_made_endless(Loader: Any, num_workers: int) -> None:
    class Infinite(Loader):
        """Keeps one iterator over a batch sampler that never ends, and gives an epoch of it at a time."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    loader = Infinite(Numbers(5), batch_size=2, **forked(num_workers))
    assert [numbers(loader) for _ in range(3)] == [[[0, 1], [2, 3], [4]]] * 3


@with_and_without_workers
def test_a_subclass_can_replace_the_index_sampler(Loader: Any, num_workers: int) -> None:
    class Backwards(Loader):
        @property
        def _index_sampler(self) -> Any:
            return [[3], [2, 1]]

    loader = Backwards(Numbers(4), batch_size=2, **forked(num_workers))
    assert ([[3], [2, 1]], 2) == (numbers(loader), len(loader))


@with_and_without_workers
def test_a_subclass_may_set_attributes_before_its_loader_is_made(Loader: Any, num_workers: int) -> None:
    class Named(Loader):
        def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
            self.name = name
            self.collate_fn = None
            super().__init__(*args, **kwargs)

    loader = Named("mine", Numbers(2), **forked(num_workers))
    assert ("mine", [[0], [1]]) == (loader.name, numbers(loader))


@forked_only
@with_and_without_workers
def test_a_subclass_can_bring_its_own_collate_function(Loader: Any, num_workers: int) -> None:
    class Summing(Loader):
        def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **kwargs: Any) -> None:
            kwargs.pop("collate_fn", None)
            super().__init__(dataset, batch_size, shuffle, collate_fn=self.total, **kwargs)

        @staticmethod
        def total(samples: list[torch.Tensor]) -> int:
            return int(sum(samples))

    assert list(Summing(Numbers(5), batch_size=2, **forked(num_workers))) == [1, 5, 4]


def test_a_subclass_can_silence_the_check_of_the_worker_count(Loader: Any) -> None:
    class Bold(Loader):
        def check_worker_number_rationality(self) -> None:
            pass

    assert numbers(Bold(Numbers(2), **forked(len(os.sched_getaffinity(0)) + 1))) == [[0], [1]]


@with_and_without_workers
def test_a_loader_can_be_made_again_from_its_attributes(Loader: Any, num_workers: int) -> None:
    """What trainers do to put a distributed sampler into a loader."""
    loader = Loader(Numbers(6), batch_size=2, drop_last=True, **forked(num_workers))
    names = set(inspect.signature(torch.utils.data.DataLoader.__init__).parameters) - {"self", "shuffle"}
    options = {name: getattr(loader, name) for name in names}
    options["sampler"] = SequentialSampler(range(5))
    options["batch_sampler"] = None
    again = type(loader)(**options)
    assert [[0, 1], [2, 3]] == numbers(again)


@with_and_without_workers
def test_a_batch_sampler_can_be_put_in_from_outside(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(6), batch_size=2, **forked(num_workers))
    sampler = BatchSampler(SequentialSampler(range(6)), batch_size=4, drop_last=False)
    object.__setattr__(loader, "batch_sampler", sampler)
    assert ([[0, 1, 2, 3], [4, 5]], 2) == (numbers(loader), len(loader))


@forked_only
@processes_only
def test_the_signature_offers_every_argument_of_the_original(Loader: Any) -> None:
    original = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    assert list(original)[:14] == list(inspect.signature(Loader.__init__).parameters)[:14]
    assert set(original) <= set(inspect.signature(Loader.__init__).parameters)


@pytest.mark.parametrize("persistent", [False, True], ids=["for_one_epoch", "persistent"])
def test_a_skipping_subclass_draws_no_batch_twice(Loader: Any, persistent: bool) -> None:
    class Skipping(Loader):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for number, batch in enumerate(super().__iter__()):
                if number >= 2:
                    yield batch

    sampler = CountingBatches(5)
    loader = Skipping(Numbers(10), batch_sampler=sampler, persistent_workers=persistent, **forked(2))
    assert ([[4, 5], [6, 7], [8, 9]], 5) == (numbers(loader), sampler.drawn)
