"""What tests of live sources have in common: records with numbers, and the loaders that read them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import headrace


def values(numbers: Iterable[int]) -> list[bytes]:
    """Returns a record for each number."""
    return [json.dumps({"id": number, "x": number / 2}).encode() for number in numbers]


def loader_of(data: object, **settings: object) -> headrace.DataLoader:
    settings = {"batch_size": 16, "shuffle": True, **settings}
    return headrace.DataLoader(data, **settings)  # type: ignore[arg-type]


def ids_of(batch: object) -> list[int]:
    """Returns the numbers of a batch's records."""
    return batch["id"].tolist()  # type: ignore[index]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    """Returns the numbers of all batches."""
    return list(itertools.chain.from_iterable(batches))


def read(loader: Iterable[object], most: int | None = None) -> list[list[int]]:
    """Returns the numbers of each batch, of so many batches."""
    found: list[list[int]] = []
    if most == 0:
        return found
    for batch in loader:
        found.append(ids_of(batch))
        if len(found) == most:
            break
    return found
