"""Parts of a document that is cut come in several batches, and are of one document whatever its steps draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.core.errors import UsageError
from headrace.samplers import MixtureSampler, WeightedSampler
from headrace.samplers.positions import Uneven

LENGTHS = [7, 30, 1, 12, 25, 3, 40, 9] * 4
DRAWS: dict[str, Callable[[], int]] = {
    "rng": lambda: int(headrace.rng().integers(1 << 30)),
    "random": lambda: random.randrange(1 << 30),
    "numpy": lambda: int(np.random.randint(1 << 30)),
    "torch": lambda: int(torch.randint(1 << 30, ()).item()),
}


class Drawn(Dataset[Any]):
    """Documents of one token again and again, which is drawn; `key` says which document it is."""

    def __init__(self, draw: str, bad: Collection[int] = ()) -> None:
        self.draw = draw
        self.bad = bad

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, key: int) -> Any:
        if key in self.bad:
            raise ValueError(f"document {key} is bad")
        tokens = np.full(LENGTHS[key], DRAWS[self.draw]())
        return {"input_ids": tokens, "key": np.full(len(tokens), key)}


def loader_of(
    draw: str,
    of_sampler: int = 5,
    *,
    bad: Collection[int] = (),
    order: Any = None,
    rank: int | None = None,
    world_size: int | None = None,
    uneven: Uneven = "pad",
    **options: Any,
) -> headrace.DataLoader[Any]:
    sampler = headrace.samplers.PackedBatchSampler(
        LENGTHS, 16, fit="split", window=8, order=order, seed=of_sampler,
        rank=rank, world_size=world_size, uneven=uneven,
    )  # fmt: skip
    return headrace.DataLoader(Drawn(draw, bad), batch_sampler=sampler, collate_fn=collated, **options)


def collated(samples: Any, packs: Any = None) -> Any:
    return headrace.collate_packed(samples, per_token=["key"], packs=packs)


def assert_each_is_one_document(pieces: list[tuple[int, int]]) -> None:
    assert sorted(key for key, _ in pieces) == [key for key, length in enumerate(LENGTHS) for _ in range(length)]
    assert len(set(pieces)) == len(LENGTHS)


def pieces_of(batches: Any) -> list[tuple[int, int]]:
    """Returns for each token its document, and the token, in the order in which they come."""
    found = []
    for batch in batches:
        real = batch["document_ids"] >= 0
        found += zip(batch["key"][real].tolist(), batch["input_ids"][real].tolist(), strict=True)
    return found


def keys_of(batches: Any) -> list[int]:
    return [key for key, _ in pieces_of(batches)]


@pytest.mark.parametrize(
    ("draw", "options"),
    [
        *[(draw, {"num_workers": workers}) for draw in DRAWS for workers in (0, 2)],
        ("rng", {"num_workers": 2, "backend": "thread"}),
        ("torch", {"num_workers": 2, "on_error": "replace"}),
    ],
)
def test_all_parts_are_of_one_document(draw: str, options: Any) -> None:
    loader = loader_of(draw, **options)
    tokens = []
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        pieces = pieces_of(loader)
        assert_each_is_one_document(pieces)
        tokens.append(dict(pieces))
    assert len(set(tokens[0].items()) | set(tokens[1].items())) == 2 * len(LENGTHS)


def test_also_across_a_resume_with_other_workers() -> None:
    loader = loader_of("rng", num_workers=2)
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(7)]
    state = loader.state_dict()
    del iterator
    again = loader_of("rng")
    again.load_state_dict(state)
    assert_each_is_one_document(pieces_of([*begun, *again]))


def test_also_across_a_resume_from_the_state_of_the_sampler() -> None:
    loader = loader_of("rng")
    assert pieces_of(loader)
    loader.batch_sampler.set_epoch(1)  # type: ignore[union-attr]
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(6)]
    state = loader.batch_sampler.state_dict()  # type: ignore[union-attr]
    again = loader_of("rng")
    again.batch_sampler.load_state_dict(state)  # type: ignore[union-attr]
    assert_each_is_one_document(pieces_of([*begun, *again]))


def test_also_if_one_rank_has_looked_at_a_batch_before() -> None:
    ranks = [loader_of("rng", rank=rank, world_size=2, uneven="keep") for rank in range(2)]
    assert next(iter(ranks[0]))
    assert_each_is_one_document([piece for loader in ranks for piece in pieces_of(loader)])


def test_the_seed_is_that_of_the_sampler_unless_one_is_given() -> None:
    unseeded = pieces_of(loader_of("rng"))
    assert unseeded == pieces_of(loader_of("rng", seed=5))
    assert dict(unseeded) != dict(pieces_of(loader_of("rng", seed=6)))


def test_the_order_stays_a_matter_of_the_sampler() -> None:
    loader = loader_of("rng")
    first = keys_of(loader)
    assert keys_of(loader) == first
    loader.batch_sampler.set_epoch(3)  # type: ignore[union-attr]
    third = keys_of(loader)
    assert third != first
    assert keys_of(loader) == third


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sources", [None, [20, 12]])
def test_one_document_takes_the_place_of_all_parts_of_a_bad_one(sources: Any, workers: int) -> None:
    bad = [key for key, length in enumerate(LENGTHS) if length > 16][:4]
    for seed in range(10):
        order = None
        if sources:
            order = MixtureSampler(sources, sources, seed=seed)
        loader = loader_of("rng", seed, bad=bad, order=order, on_error="replace", num_workers=workers)
        planned = list(loader.batch_sampler)  # type: ignore[arg-type]
        # A mixture may draw a document twice: each time is one place of the order.
        found: dict[int, set[tuple[int, int]]] = {}
        for batch, plan in zip(loader, planned, strict=True):
            for number, (key, position) in enumerate(zip(plan, plan.positions.tolist(), strict=True)):
                if key in bad:
                    here = batch["document_ids"] == number
                    tokens = zip(batch["key"][here].tolist(), batch["input_ids"][here].tolist(), strict=True)
                    found.setdefault(position, set()).update(tokens)
        assert {len(tokens) for tokens in found.values()} == {1}
        assert loader.faults.replaced > len(bad)


def test_an_order_that_does_not_say_what_it_draws_from_is_refused() -> None:
    order = WeightedSampler([1.0] * len(LENGTHS), len(LENGTHS))
    with pytest.raises(UsageError, match="would be replaced by several documents"):
        loader_of("rng", order=order, on_error="replace")
    assert pieces_of(loader_of("rng", bad=[1], order=order, on_error="skip"))
