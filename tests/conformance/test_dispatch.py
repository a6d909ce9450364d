"""Which worker makes which batch, how far ahead, and in which order batches come."""

from typing import Any

import pytest

from .datasets import CountingBatches, Gated, Numbers, Opening, Witness
from .running import FORK, forked, forked_only, numbers, with_and_without_workers


@pytest.mark.parametrize("prefetch_factor", [1, 2, 50])
@pytest.mark.parametrize("workers", [1, 2])
def test_batch_k_is_made_by_worker_k_modulo_their_number(Loader: Any, workers: int, prefetch_factor: int) -> None:
    loader = Loader(Witness(22), batch_size=2, prefetch_factor=prefetch_factor, **forked(workers))
    made_by = [batch["worker"].tolist() for batch in loader]
    assert [[number % workers] * 2 for number in range(11)] == made_by


def test_each_persistent_epoch_starts_with_the_first_worker(Loader: Any) -> None:
    loader = Loader(Witness(3), persistent_workers=True, **forked(2))
    assert [[int(batch["worker"]) for batch in loader] for _ in range(3)] == [[0, 1, 0]] * 3


@pytest.mark.parametrize("prefetch_factor", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_requested_ahead_and_then_one_for_each_that_was_taken(
    Loader: Any, workers: int, prefetch_factor: int
) -> None:
    sampler = CountingBatches(10)
    loader = Loader(Numbers(20), batch_sampler=sampler, prefetch_factor=prefetch_factor, **forked(workers))
    iterator = iter(loader)
    drawn = [sampler.drawn]
    for _ in iterator:
        drawn.append(sampler.drawn)
    ahead = workers * prefetch_factor
    assert [min(ahead + taken, 10) for taken in range(11)] == drawn


def test_without_workers_batches_are_requested_when_they_are_wanted(Loader: Any) -> None:
    sampler = CountingBatches(3)
    iterator = iter(Loader(Numbers(6), batch_sampler=sampler))
    drawn = [sampler.drawn]
    for _ in iterator:
        drawn.append(sampler.drawn)
    assert drawn == [0, 1, 2, 3]


def test_a_persistent_epoch_requests_ahead_again(Loader: Any) -> None:
    sampler = CountingBatches(10)
    loader = Loader(Numbers(20), batch_sampler=sampler, persistent_workers=True, **forked(2))
    assert len(list(loader)) == 10
    sampler.drawn = 0
    iter(loader)
    assert sampler.drawn == 4


@with_and_without_workers
def test_a_sampler_of_the_user_is_asked_for_an_iterator_as_often_as_by_the_original(
    Loader: Any, num_workers: int
) -> None:
    sampler = Asked()
    loader = Loader(Numbers(3), sampler=sampler, batch_size=None, **forked(num_workers))
    counts = []
    for _ in range(2):
        assert numbers(loader) == [0, 1, 2]
        counts.append(sampler.asked)
    # With workers once when the iterator is made and once more when it is reset for its first epoch
    assert counts == ([2, 4] if num_workers else [1, 2])


class Asked:
    """A sampler that counts how often it was asked for an iterator."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Any:
        self.asked += 1
        return iter(range(3))


@forked_only
def test_in_order_a_quick_worker_waits_for_a_slow_one(Loader: Any) -> None:
    # Sample 0 is finished only after sample 1, made by the other worker, was
    dataset = Opening(6, FORK.Event(), held=0, opener=1)
    assert numbers(Loader(dataset, **forked(2))) == [[number] for number in range(6)]


@forked_only
def test_out_of_order_a_quick_worker_does_not_wait_for_a_slow_one(Loader: Any) -> None:
    gate = FORK.Event()
    iterator = iter(Loader(Gated(4, gate, held=[0]), in_order=False, prefetch_factor=1, **forked(2)))
    first = next(iterator).tolist()
    gate.set()
    assert first == [1]
    assert sorted(numbers(iterator)) == [[0], [2], [3]]


@pytest.mark.parametrize("persistent", [False, True], ids=["for_one_epoch", "persistent"])
def test_out_of_order_every_batch_comes_exactly_once(Loader: Any, persistent: bool) -> None:
    loader = Loader(Numbers(101), batch_size=2, in_order=False, persistent_workers=persistent, **forked(2))
    for _ in range(2):
        assert [*range(101)] == sorted(number for batch in numbers(loader) for number in batch)


def test_out_of_order_has_no_meaning_without_workers(Loader: Any) -> None:
    assert numbers(Loader(Numbers(3), in_order=False)) == [[0], [1], [2]]
