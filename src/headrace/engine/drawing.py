"""What the order of an epoch is drawn from: samplers with a state, generators, the base seed of torch's iterator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from headrace.core.streams import global_states
from headrace.core.torch_internals import DatasetKind
from headrace.fetch.fetcher import is_stateful
from headrace.state.record import Terms


def resumable(index_sampler: Any) -> Any:
    """Returns the sampler whose state says where an index sampler is: itself or the one that it batches; or None."""
    for sampler in (index_sampler, getattr(index_sampler, "sampler", None)):
        if is_stateful(sampler):
            return sampler
    return None


def random_state(loader: Any) -> Any:
    """Returns the states of the generators that an order may be drawn from, as they are now; None if none is."""
    if loader._dataset_kind == DatasetKind.Iterable or resumable(loader._index_sampler) is not None:
        return None
    return {"global": global_states(), "own": [generator.get_state() for generator in generators(loader)]}


def generators(loader: Any) -> list[torch.Generator]:
    """Returns the generators that the loader and its samplers own, each once."""
    owners = (loader, loader._index_sampler, getattr(loader._index_sampler, "sampler", None))
    found = {id(own): own for owner in owners if isinstance(own := getattr(owner, "generator", None), torch.Generator)}
    return list(found.values())


@contextlib.contextmanager
def own_base_seed(loader: Any, terms: Terms) -> Iterator[None]:
    """Has torch's iterator draw its base seed from nowhere, if the seed of the terms takes its place."""
    if terms.seed is None:
        yield
        return
    generator, loader.generator = loader.generator, torch.Generator()
    try:
        yield
    finally:
        loader.generator = generator
