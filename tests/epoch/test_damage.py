"""A damaged state is refused as such, whatever is damaged, before anything is taken from it."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import StateError
from headrace.epoch.snapshot import sealed

from .datasets import Counting, Rows, SelfSplitting, Stream

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot say where it was")


def loader(kind: str) -> Any:
    generator = torch.Generator().manual_seed(1)
    kinds: dict[str, Any] = {
        "generator": lambda: headrace.DataLoader(Rows(40), batch_size=4, shuffle=True, generator=generator),
        "seed": lambda: headrace.DataLoader(Rows(40), batch_size=4, shuffle=True, seed=3),
        "shard": lambda: headrace.DataLoader(Rows(40), batch_size=4, shuffle=True, seed=3, shard="auto"),
        "deferred": lambda: headrace.DataLoader(Rows(40), batch_size=4, seed=3),
        "stateful": lambda: headrace.DataLoader(Counting(40), batch_size=4),
        "stream": lambda: headrace.DataLoader(Stream(40), batch_size=4, seed=3, shard="auto"),
        "own streams": lambda: headrace.DataLoader(SelfSplitting(40, True), batch_size=4),
    }
    return kinds[kind]()


KINDS = ["generator", "seed", "shard", "deferred", "stateful", "stream", "own streams"]

WRONG: list[Any] = [
    None, True, False, -1, 0, 7, 10**9, 10**30, 2.5, math.nan, math.inf, "", "no", "zzz", [], [1], [[1]], [[0, 1, 2]],
    {}, {"count": 10**9}, [None], [["a", 1]], b"bytes", torch.tensor(4), torch.tensor([4, 3]), np.array([4, 3]),
]  # fmt: skip


def states() -> Iterator[Any]:
    for kind in KINDS:
        made = loader(kind)
        iterator = iter(made)
        for _ in range(3):
            next(iterator)
        state = made.state_dict()
        if kind == "deferred":  # sample 20 was moved away, and back to its place
            state = sealed({**state, "deferred": [[20, 20, 20, True]]})
        yield kind, state


STATES = dict(states())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a state: keys of dictionaries and positions of lists."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, (list, tuple)):
        inside = enumerate(value)
    for key, part in inside:
        yield (*path, key)
        yield from places(part, (*path, key))


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a state with another value in one place."""
    damaged = copy.deepcopy(state)
    inner = damaged
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return damaged


@pytest.mark.thorough
@given(data=st.data())
@settings(deadline=None, max_examples=400)
@pytest.mark.parametrize("kind", KINDS)
def test_any_other_value_in_any_place_is_a_state_error(kind: str, data: Any) -> None:
    state = STATES[kind]
    path = data.draw(st.sampled_from(list(places(state))))
    was = state
    for step in path:
        was = was[step]
    value = data.draw(st.sampled_from(WRONG))
    if type(value) is type(was) and value == was:
        return
    if json.dumps(was, default=str) == json.dumps(value, default=str):
        return  # a tuple and a list of the same are one
    damaged = changed(state, path, value)
    fresh = loader(kind)
    with pytest.raises(StateError, match=r"(?s)place:.*found:.*expected:.*fix:"):
        fresh.load_state_dict(damaged)
    assert [batch.tolist() for batch in fresh] == [batch.tolist() for batch in loader(kind)], "nothing was taken of it"
    with pytest.raises(StateError):
        headrace.merge_states([damaged])


@pytest.mark.parametrize("name", ["batch_size", "seed", "length", "dataset", "samplers", "version"])
@pytest.mark.parametrize("value", [torch.tensor([4, 3]), np.array([4, 3]), [torch.tensor([4, 3])]], ids=repr)
def test_an_array_in_the_place_of_a_plain_value_is_a_state_error(name: str, value: Any) -> None:
    damaged = {**STATES["seed"], name: value}
    with pytest.raises(StateError, match=r"(?s)damaged|another version"):
        loader("seed").load_state_dict(damaged)
    with pytest.raises(StateError):
        headrace.merge_states([damaged, damaged])


@pytest.mark.parametrize("state", [torch.tensor([4, 3]), np.array([4, 3]), [], None, "state"], ids=repr)
def test_what_is_no_dictionary_is_no_state(state: Any) -> None:
    with pytest.raises(StateError, match="no state of a headrace"):
        loader("seed").load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_part_is_a_state_error(kind: str) -> None:
    for name in STATES[kind]:
        damaged = {key: value for key, value in STATES[kind].items() if key != name}
        with pytest.raises(StateError):
            loader(kind).load_state_dict(damaged)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_plain_values_that_can_be_compared_and_written_as_json(kind: str) -> None:
    state = STATES[kind]
    assert json.loads(json.dumps(state)) == state == copy.deepcopy(state)
    fresh = loader(kind)
    fresh.load_state_dict(json.loads(json.dumps(state)))
    straight = [batch.tolist() for batch in loader(kind)]
    assert [batch.tolist() for batch in fresh] == straight[3:]


def test_a_state_of_more_batches_than_there_are_is_refused() -> None:
    """Whole, but of a loader over the same data in larger epochs."""
    sampler = torch.utils.data.RandomSampler(range(40), num_samples=80, replacement=True)
    longer = headrace.DataLoader(Rows(40), batch_size=4, sampler=sampler)
    iterator = iter(longer)
    for _ in range(15):
        next(iterator)
    shorter = headrace.DataLoader(Rows(40), batch_size=4, sampler=torch.utils.data.RandomSampler(range(40)))
    with pytest.raises(StateError, match=r"(?s)past the end of the epoch.*batch 15.*at most 10 batches"):
        shorter.load_state_dict(longer.state_dict())


def test_keys_that_a_framework_adds_are_no_damage() -> None:
    fresh = loader("seed")
    fresh.load_state_dict({**STATES["seed"], "_iterator_finished": False})
    assert len(list(fresh)) == 7


def test_a_state_of_another_sampler_is_refused() -> None:
    """Also where no sampler has a state, so that nothing but its class tells one order from another."""
    subset = torch.utils.data.SubsetRandomSampler(range(40))
    options: list[dict[str, Any]] = [
        {},
        {"shuffle": True},
        {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 40, 40)},
        {"sampler": subset},
        {"seed": 0, "shuffle": True},
        {"seed": 0, "sampler": subset},
        {"batch_sampler": [[0, 1, 2, 3]] * 10},
    ]
    for number, saving in enumerate(options):
        saved = headrace.DataLoader(Rows(40), **in_batches(saving))
        next(iter(saved))
        state = json.loads(json.dumps(saved.state_dict()))
        for other, loading in enumerate(options):
            resumed = headrace.DataLoader(Rows(40), **in_batches(loading))
            if other == number:
                resumed.load_state_dict(state)
                continue
            with pytest.raises(StateError, match=r"another (kind of sampler|seed|batch_size)"):
                resumed.load_state_dict(state)


def in_batches(options: dict[str, Any]) -> dict[str, Any]:
    return options if "batch_sampler" in options else {"batch_size": 4, **options}


@pytest.mark.parametrize("portion", [0, 1, 3, -1, 10**30, "x", None, [], ...])
def test_the_place_within_a_portion_is_checked_too(portion: Any) -> None:
    saved = headrace.DataLoader(Rows(40), batch_size=4, batches_per_epoch=7)
    iterator = iter(saved)
    for _ in range(2):
        next(iterator)
    state = saved.state_dict()
    if portion is ...:
        del state["portion"]
    else:
        state["portion"] = portion
    with pytest.raises(StateError):
        headrace.DataLoader(Rows(40), batch_size=4, batches_per_epoch=7).load_state_dict(state)
