"""Parts of a document that is cut come in several batches, and are of one document whatever its steps draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import headrace

LENGTHS = [7, 30, 1, 12, 25, 3, 40, 9] * 4
DRAWS: dict[str, Callable[[], int]] = {
    "rng": lambda: int(headrace.rng().integers(1 << 30)),
    "random": lambda: random.randrange(1 << 30),
    "numpy": lambda: int(np.random.randint(1 << 30)),
    "torch": lambda: int(torch.randint(1 << 30, ()).item()),
}


class Drawn(Dataset[Any]):
    """Documents of one token again and again, which is drawn; `key` says which document it is."""

    def __init__(self, draw: str) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, key: int) -> Any:
        tokens = np.full(LENGTHS[key], DRAWS[self.draw]())
        return {"input_ids": tokens, "key": np.full(len(tokens), key)}


def loader_of(draw: str, of_sampler: int = 5, **options: Any) -> headrace.DataLoader[Any]:
    sampler = headrace.samplers.PackedBatchSampler(LENGTHS, 16, fit="split", window=8, seed=of_sampler)
    return headrace.DataLoader(Drawn(draw), batch_sampler=sampler, collate_fn=collated, **options)


def collated(samples: Any, packs: Any = None) -> Any:
    return headrace.collate_packed(samples, per_token=["key"], packs=packs)


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
    for _ in range(2):
        pieces = pieces_of(loader)
        assert sorted(key for key, _ in pieces) == [key for key, length in enumerate(LENGTHS) for _ in range(length)]
        assert len(set(pieces)) == len(LENGTHS)
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
    pieces = pieces_of([*begun, *again])
    assert sorted(key for key, _ in pieces) == [key for key, length in enumerate(LENGTHS) for _ in range(length)]
    assert len(set(pieces)) == len(LENGTHS)


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
