"""What the order of an epoch is drawn from: samplers with a state, generators, the base seed of torch's iterator."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from headrace.core.missing_state import state_of
from headrace.core.protocols import is_stateful, tell_epoch
from headrace.core.randomness.rng import global_states, set_global_states
from headrace.core.torch_internals import IterDataPipe
from headrace.core.world import World
from headrace.epoch.generators import OrderStates
from headrace.epoch.record import Draws, Terms
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.frameworks import split_by_lightning
from headrace.samplers.kept import KeptSampler
from headrace.samplers.sampler import ElasticSampler


def resumable(index_sampler: object) -> Any:
    """Returns the sampler whose state says where an index sampler is: itself or the one that it batches; or None."""
    for sampler in (index_sampler, getattr(index_sampler, "sampler", None)):
        if is_stateful(sampler):
            return sampler
    return None


def draws_nothing(index_sampler: object) -> bool:
    """Tells whether an order is known to be the same function of epoch and rank everywhere, drawn from no generator."""
    if type(index_sampler) is BatchSampler:
        return draws_nothing(index_sampler.sampler)
    if type(index_sampler) in (SequentialSampler, DistributedSampler) or isinstance(index_sampler, ElasticSampler):
        return True
    if isinstance(index_sampler, KeptSampler):
        return not index_sampler.shuffle

    split = split_by_lightning(index_sampler)
    return split is not None and draws_nothing(split)


def names_of_samplers(index_sampler: object) -> list[str]:
    """Returns the class of an index sampler, and that of the sampler in it, if there is one."""
    samplers = [index_sampler]
    if (inner := getattr(index_sampler, "sampler", None)) is not None:
        samplers.append(inner)
    return [type(sampler).__qualname__ for sampler in samplers]


def random_state(spec: LoaderSpec) -> OrderStates | None:
    """Returns the states of the generators that an order or a base seed may be drawn from; None if neither is."""
    is_stream = not spec.is_map
    draws_order = not is_stream and resumable(spec.index_sampler) is None
    draws_base_seed = spec.seed is None
    if not draws_order and not draws_base_seed:
        return None
    return OrderStates(global_states(), [generator.get_state() for generator in generators(spec)])


def set_random_state(spec: LoaderSpec, states: OrderStates) -> None:
    """Puts the generators into the states that `random_state` returned, of this loader or one that is set up alike."""
    set_global_states(states.all)
    for generator, state in zip(generators(spec), states.own, strict=True):
        generator.set_state(state)


class Redrawing:
    """An order that is being drawn again, and what becomes of the user's global generators behind it."""

    def __init__(self, states: OrderStates) -> None:
        """states: where the interrupted run began to draw."""
        self._users = global_states()
        self._goes_on = states.all.holds_now()

    def has_drawn_before_the_first_batch(self) -> None:
        """Notes that all is drawn that an epoch draws before the loop asks for its first batch.

        The state may have been taken at this place. If the user's generators are here too, they go on from here.
        """
        self._goes_on = self._goes_on or self._users.holds_now()

    def leave(self) -> None:
        """Puts the global generators back, unless they were where the interrupted run had them."""
        if not self._goes_on:
            set_global_states(self._users)


@contextlib.contextmanager
def drawing_from(spec: LoaderSpec, states: OrderStates) -> Iterator[Redrawing]:
    """Has what is drawn meanwhile come from generators in these states.

    The global generators are then put back, since they belong to the user, unless they were where the interrupted run
    had them: then they go on as if the order had been drawn from them. Generators of the loader's own stay where the
    drawing leaves them.
    """
    redrawing = Redrawing(states)
    set_random_state(spec, states)
    try:
        yield redrawing
    finally:
        redrawing.leave()


def pattern_of_draws(dataset: object, *, workers: bool, persistent: bool) -> Draws:
    """Returns what torch's iterator draws at the beginning of an epoch.

    With workers torch begins the first epoch two times. A further epoch of the same workers draws no base seed.
    """
    if isinstance(dataset, IterDataPipe):
        shared = "p"
    else:
        shared = ""

    again = "i" + shared
    first = shared + "is"
    if workers:
        first += again
    if persistent:
        return Draws(first, again)
    return Draws(first, first)


def pattern_of_reset(dataset: object) -> Draws:
    """Returns what torch's iterator draws at the beginning of a further epoch of the same workers."""
    again = pattern_of_draws(dataset, workers=True, persistent=True).later
    return Draws(again, again)


def generators(spec: LoaderSpec) -> list[torch.Generator]:
    """Returns the generators that a loader and its samplers own, each once."""
    owners = (spec, spec.index_sampler, getattr(spec.index_sampler, "sampler", None))
    found = {id(own): own for owner in owners if isinstance(own := getattr(owner, "generator", None), torch.Generator)}
    return list(found.values())


def announce(index_sampler: object, terms: Terms) -> None:
    """Tells samplers the number of the epoch, where the loader is asked to."""
    if terms.announce and terms.told is not None:
        tell_epoch(index_sampler, terms.told)
        tell_epoch(getattr(index_sampler, "sampler", None), terms.told)


def dealing_of(index_sampler: object, world: World) -> World:
    """Returns the world over which a sampler deals out its positions; for a foreign one, the world around."""
    dealing = getattr(resumable(index_sampler), "world", world)
    if isinstance(dealing, World):
        return dealing
    return world


def position_in(state: object, otherwise: int) -> int:
    """Returns the position that a sampler's state names; `otherwise`, if it names none."""
    if isinstance(state, dict):
        return int(state.get("position", otherwise))
    return otherwise


class Follower:
    """Notes where an iteration over a sampler is: the one that has just begun when it is first called."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._note: Callable[[], Any] | None = None

    def __call__(self) -> Any:
        """Returns a checkpoint of the sampler."""
        if self._note is None:
            self._note = self._sampler.follow()
        return self._note()


def checkpoint_of(sampler: Any) -> Callable[[], Any] | None:
    """Returns what notes where a sampler is, many times an epoch; None: it has no state.

    Samplers of headrace have a quick way to note it; others are asked for their state each time.
    """
    if sampler is None:
        return None
    if isinstance(sampler, ElasticSampler):
        return Follower(sampler)
    return functools.partial(state_of, sampler)


def state_maker_of(sampler: Any) -> Callable[[Any], Any]:
    """Returns what makes a sampler's state of such a note."""
    if isinstance(sampler, ElasticSampler):
        return sampler.state_at
    return _as_it_is


def changing(index_sampler: object) -> ElasticSampler | None:
    """Returns the sampler whose order the user may change on the way; None: there is none. See `begin_change`."""
    sampler = resumable(index_sampler)
    if isinstance(sampler, ElasticSampler) and sampler.may_change:
        return sampler
    return None


def state_of_changed(index_sampler: object) -> Any:
    """Returns the state of a sampler whose order was changed before its first epoch; None: nothing was changed."""
    sampler = changing(index_sampler)
    if sampler is None or not sampler.changes:
        return None
    return sampler.state_at(sampler.upcoming())


def _as_it_is(state: Any) -> Any:
    return state
