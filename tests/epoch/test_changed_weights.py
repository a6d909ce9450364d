"""`MixtureSampler.set_weights` in a training loop: where the change begins, on all ranks, and behind a resume.

It begins with the batch that the loop gets next, whatever workers have made ahead.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import UsageError
from headrace.samplers import MixtureSampler

from .datasets import Drawing
from .test_resume import by_step, lists, no_fixture_problem, saved, workers

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LENGTHS = [50, 31, 17]
GLOBAL_BATCH = 12
STEPS = 9
EPOCHS = 2

Place = tuple[int, int]
"""An epoch, and a step in it: behind so many batches of it."""

Changes = dict[Place, list[int]]


def sampler(**dealing: Any) -> MixtureSampler:
    return MixtureSampler(LENGTHS, [1, 1, 1], GLOBAL_BATCH * STEPS, seed=7, **dealing)


def expected(changes: Changes) -> list[list[int]]:
    """The global batches, as the sampler alone gives them if it is changed between two of its keys."""
    alone = sampler(rank=0, world_size=1)
    batches = []
    for epoch in range(EPOCHS):
        alone.set_epoch(epoch)
        keys = iter(alone)
        for step in range(STEPS):
            if (epoch, step) in changes:
                alone.set_weights(changes[epoch, step])
            batches.append(list(islice(keys, GLOBAL_BATCH)))
    return batches


def loader_of(ranks: int, crew: tuple[int, str], **more: Any) -> Any:
    number, backend = crew
    options = {"persistent_workers": True} if more.pop("persistent", False) and number else {}
    return headrace.DataLoader(
        Drawing(sum(LENGTHS)), GLOBAL_BATCH // ranks, sampler=sampler(), num_workers=number, backend=backend, seed=7,
        **options, **more,
    )  # fmt: skip


def trained(loader: Any, changes: Changes, begin: Place = (0, 0), stop: Place = (EPOCHS, 0)) -> list[Any]:
    """The batches of a loop from one place to another, which changes the weights on its way."""
    batches = []
    for epoch in range(begin[0], EPOCHS):
        iterator = iter(loader)
        for step in range(begin[1] if epoch == begin[0] else 0, STEPS):
            if (epoch, step) in changes:
                loader.sampler.set_weights(changes[epoch, step])
            if (epoch, step) == stop:
                return batches
            batches += lists([next(iterator)])
        assert next(iterator, None) is None
        if (epoch + 1, 0) == stop:
            # Between two epochs; the next one has not begun.
            if stop in changes:
                loader.sampler.set_weights(changes[stop])
            break
    return batches


places = st.tuples(st.integers(0, EPOCHS - 1), st.integers(0, STEPS - 1))


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
@given(
    changes=st.dictionaries(places, st.sampled_from([[1, 0, 0], [0, 1, 3], [5, 2, 1]]), min_size=1, max_size=3),
    stop=places,
    before=workers,
    after=workers,
    ranks=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4])),
)
@example(
    changes={(1, 0): [1, 0, 0]},
    stop=(1, 0),
    before=(0, "process"),
    after=(0, "process"),
    ranks=(1, 1),
)
@settings(no_fixture_problem, max_examples=25)
def test_a_change_begins_with_the_next_batch_and_outlives_a_resume(
    changes: Changes,
    stop: Place,
    before: tuple[int, str],
    after: tuple[int, str],
    ranks: tuple[int, int],
    persistent: bool,
    on_rank: Any,
) -> None:
    heads, states = [], []
    for rank in range(ranks[0]):
        on_rank(rank, ranks[0])
        loader = loader_of(ranks[0], before, persistent=persistent)
        heads.append(trained(loader, changes, stop=stop))
        states.append(saved(loader.state_dict()))
        loader._iterator = None

    merged = headrace.merge_states(states)
    rests = []
    for rank in range(ranks[1]):
        on_rank(rank, ranks[1])
        loader = loader_of(ranks[1], after, persistent=persistent)
        loader.load_state_dict(merged)
        later = {place: weights for place, weights in changes.items() if place > stop}
        rests.append(trained(loader, later, begin=stop))
    on_rank(0, 1)
    batches = [*by_step(heads), *by_step(rests)]
    assert [[key for key, _ in batch] for batch in batches] == expected(changes)
    drawn = trained(loader_of(1, (0, "process")), changes)
    assert batches == by_step([drawn])


@pytest.mark.parametrize("crew", [(0, "process"), (2, "thread"), (2, "process")], ids=str)
def test_a_change_begins_with_the_next_batch(crew: tuple[int, str]) -> None:
    changes: Changes = {(0, 0): [0, 1, 1], (0, 3): [1, 0, 0], (0, 4): [0, 0, 1], (1, 5): [0, 1, 0]}
    batches = trained(loader_of(1, crew), changes)
    assert [[key for key, _ in batch] for batch in batches] == expected(changes)


@pytest.mark.parametrize("crew", [(0, "process"), (3, "process")], ids=str)
@pytest.mark.parametrize("saves", ["before", "behind"])
def test_a_change_before_the_loop_or_between_epochs_is_in_the_state(saves: str, crew: tuple[int, str]) -> None:
    """Also if the epoch was left early, if the state is loaded before the change, and if it is saved twice."""
    first = loader_of(1, crew)
    first.sampler.set_weights([0, 1, 1])
    state = saved(first.state_dict())
    second = loader_of(1, crew)
    second.load_state_dict(state)
    head = lists(islice(second, 4))
    assert head == trained(loader_of(1, (0, "process")), {(0, 0): [0, 1, 1]})[:4]

    # The epoch was left behind four batches, of which workers have made more.
    if saves == "before":
        third = loader_of(1, crew)
        third.load_state_dict(saved(second.state_dict()))
        third.sampler.set_weights([1, 0, 0])
    else:
        second.sampler.set_weights([1, 0, 0])
        third = loader_of(1, crew)
        third.load_state_dict(saved(second.state_dict()))
    again = loader_of(1, crew)
    again.load_state_dict(saved(third.state_dict()))
    rest = trained(again, {}, begin=(0, 4))
    assert [[key for key, _ in batch] for batch in [*head, *rest]] == expected({(0, 0): [0, 1, 1], (0, 4): [1, 0, 0]})


class StepsToo(headrace.DataLoader):
    """A loader of a program's own, whose state holds more."""

    def state_dict(self) -> Any:
        return {"loader": super().state_dict(), "steps": 3}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict["loader"])


def test_a_change_behind_a_loaded_state_is_none_of_a_subclass_s_own_state() -> None:
    options: Any = {"batch_size": GLOBAL_BATCH, "seed": 7}
    first = StepsToo(Drawing(sum(LENGTHS)), sampler=sampler(), **options)
    head = lists(islice(first, 4))
    second = StepsToo(Drawing(sum(LENGTHS)), sampler=sampler(), **options)
    second.load_state_dict(first.state_dict())
    second.sampler.set_weights([0, 0, 1])
    batches = [*head, *trained(second, {}, begin=(0, 4))]
    assert [[key for key, _ in batch] for batch in batches] == expected({(0, 4): [0, 0, 1]})


@pytest.mark.parametrize("crew", [(0, "process"), (3, "process")], ids=str)
def test_an_epoch_that_was_left_early_goes_into_the_next_one_alike(crew: tuple[int, str]) -> None:
    def following(crew: tuple[int, str]) -> list[Any]:
        loader = loader_of(1, crew)
        lists(islice(loader, 2))
        loader.sampler.set_weights([0, 0, 1])
        return lists(loader)

    batches = following(crew)
    assert batches == following((0, "process"))
    assert all(key >= sum(LENGTHS[:2]) for batch in batches for key, _ in batch)


def test_a_change_at_the_end_of_an_epoch_is_in_the_state_of_that_end() -> None:
    whole = loader_of(1, (0, "process"))
    first = lists(whole)
    whole.sampler.set_weights([0, 1, 0])
    state = saved(whole.state_dict())
    second = lists(whole)
    for changed in (True, False):
        resumed = loader_of(1, (2, "process"))
        if changed:
            resumed.load_state_dict(state)
        else:
            early = loader_of(1, (0, "process"))
            assert lists(early) == first
            resumed.load_state_dict(saved(early.state_dict()))
            resumed.sampler.set_weights([0, 1, 0])
        again = loader_of(1, (0, "process"))
        again.load_state_dict(saved(resumed.state_dict()))
        assert lists(resumed) == second
        assert lists(again) == second


@pytest.mark.parametrize("more", [{"in_order": False}, {"stragglers": "defer"}], ids=str)
def test_an_order_that_is_not_kept_cannot_change_on_the_way(more: dict[str, Any]) -> None:
    loader = loader_of(1, (2, "process"), **more)
    iterator = iter(loader)
    next(iterator)
    loader.sampler.set_weights([1, 0, 0])
    with pytest.raises(UsageError, match=r"(?s)batches may come out of order.*found:.*fix:"):
        next(iterator)


@pytest.mark.thorough
def test_every_sample_of_a_source_comes_once_in_a_pass_whatever_changes() -> None:
    loader = loader_of(1, (3, "process"))
    keys = []
    for number, batch in enumerate(chain(loader, loader)):
        keys += [key for key, _ in batch.tolist() if key < LENGTHS[0]]
        if number % 2:
            loader.sampler.set_weights([1 + number % 3, number % 5, 1])
    passes = len(keys) // LENGTHS[0]
    assert passes
    for number in range(passes):
        one = keys[number * LENGTHS[0] : (number + 1) * LENGTHS[0]]
        assert sorted(one) == list(range(LENGTHS[0]))
