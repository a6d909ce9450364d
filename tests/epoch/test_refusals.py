"""States that do not fit are refused, with what was found and what was expected."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headrace
from headrace.core.errors import StateError

from .datasets import Drawing, Rows


def after(loader: Any, batches: int) -> Any:
    """The state after so many batches."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


TORCHDATA_S = "a state of torchdata's StatefulDataLoader cannot be converted"


def make(**options: Any) -> Any:
    return headrace.DataLoader(Rows(20), **{"batch_size": 4, "seed": 1, **options})


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({"next": 3}, "next"),
        (7, "a int"),
        (make().state_dict() | {"version": 99}, "version 99"),
        ({name: part for name, part in make().state_dict().items() if name != "beyond"}, "no beyond"),
        (make().state_dict() | {"batches": "3"}, "batches='3'"),
        ({"ranks": []}, "ranks"),
        (None, "a NoneType"),
        (
            {"_snapshot": {}, "_steps_since_snapshot": 0},
            TORCHDATA_S,
        ),
        ({"_num_yielded": 1, "dataset_state": None}, TORCHDATA_S),
        (make(seed=2).state_dict(), "another seed\n"),
        (make(seed=2).state_dict(), "state: seed=2, this loader: seed=1\n"),
        (headrace.DataLoader(Rows(21), batch_size=4, seed=1).state_dict(), "another length"),
        (headrace.DataLoader(Drawing(20), batch_size=4, seed=1).state_dict(), "another dataset"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: Any, found: str) -> None:
    with pytest.raises(StateError, match=r"(?s)place:.*found:.*expected:.*fix:") as caught:
        make().load_state_dict(state)
    assert found in str(caught.value)


def test_without_a_shared_order_the_batch_size_must_be_the_same() -> None:
    state = headrace.DataLoader(Rows(20), batch_size=4).state_dict()
    with pytest.raises(StateError, match=r"another batch_size"):
        headrace.DataLoader(Rows(20), batch_size=5).load_state_dict(state)


def test_an_empty_state_is_a_fresh_start() -> None:
    loader = make()
    next(iter(loader))
    loader.load_state_dict({})
    assert len(list(loader)) == 5


NO_STATE = "one that is no state of a headrace.DataLoader"


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([], "no state"),
        ([3], NO_STATE),
        ([{"a": 1}], NO_STATE),
        ([make().state_dict(), None], NO_STATE),
        ([{"_snapshot": {}}], "a state of torchdata's StatefulDataLoader, which cannot be converted"),
    ],
)
def test_what_is_no_state_cannot_be_merged(states: Any, found: str) -> None:
    with pytest.raises(
        StateError, match=rf"(?s)cannot merge states.*headrace.merge_states\n  found: +{found}\n"
    ) as caught:
        headrace.merge_states(states)
    assert "load_state_dict" not in str(caught.value)


def test_a_rank_that_is_missing_is_told(on_rank: Any) -> None:
    states = []
    for rank in (0, 2):
        on_rank(rank, 3)
        states.append(make(shard="auto").state_dict())
    with pytest.raises(StateError, match=r"(?s)ranks \[0, 2\].*each of the ranks 0 to 2 once"):
        headrace.merge_states(states)


def test_ranks_that_stopped_at_different_steps_cannot_be_merged(on_rank: Any) -> None:
    states = []
    for rank in (0, 1):
        on_rank(rank, 2)
        states.append(after(make(shard="auto"), rank))
    with pytest.raises(StateError, match="differ in batches"):
        headrace.merge_states(states)


def test_an_order_of_ranks_own_is_not_given_to_other_ranks(on_rank: Any) -> None:
    on_rank(0, 1)
    sampler = torch.utils.data.DistributedSampler(Rows(20), num_replicas=2, rank=0)
    on_rank(0, 2)
    state = headrace.DataLoader(Rows(20), batch_size=4, sampler=sampler, seed=1).state_dict()
    on_rank(0, 3)
    with pytest.raises(StateError, match=r"(?s)saved by other ranks.*rank 0 of 2.*rank 0 of 3"):
        headrace.DataLoader(Rows(20), batch_size=4, sampler=sampler, seed=1).load_state_dict(state)


@pytest.mark.parametrize("make_sampler", [None, "torch", "auto"])
def test_the_state_of_another_rank_will_do_where_ranks_go_in_step(make_sampler: str | None, on_rank: Any) -> None:
    """Frameworks save the state of rank 0 alone, and load it on all."""

    def loader(rank: int) -> Any:
        on_rank(rank, 2)
        if make_sampler == "torch":
            sampler = torch.utils.data.DistributedSampler(Rows(20), num_replicas=2, rank=rank, shuffle=True)
            return headrace.DataLoader(Rows(20), batch_size=2, sampler=sampler)
        return headrace.DataLoader(Rows(20), batch_size=2, shard=make_sampler)

    state = after(loader(0), 3)
    whole = [batch.tolist() for batch in loader(1)]
    resumed = loader(1)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == whole[3:]


def test_the_state_of_another_rank_will_not_do_where_ranks_draw(on_rank: Any) -> None:
    def loader(rank: int) -> Any:
        on_rank(rank, 2)
        sampler = torch.utils.data.RandomSampler(Rows(20))
        return headrace.DataLoader(Rows(20), batch_size=2, sampler=sampler, shard="auto")

    state = after(loader(0), 3)
    with pytest.raises(StateError, match=r"(?s)saved by other ranks"):
        loader(1).load_state_dict(state)
