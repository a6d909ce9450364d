"""`headrace.LoaderState`: a checkpoint of `torch.distributed.checkpoint` loads on any number of ranks."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.distributed.checkpoint.stateful import Stateful

import headrace
from headrace.core.errors import StateError, UsageError
from tests import programs

from .checkpoint_program import GLOBAL_BATCH, LENGTH, loader_of

STEPS = LENGTH // GLOBAL_BATCH


def train(folder: Path, kind: str, world: int, steps: int) -> tuple[int, list[list[int]]]:
    """Trains on so many ranks; returns the steps that the checkpoint counts, and the batches of all replicas."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    store = folder.with_name(f"store-{world}-{steps}")
    with ExitStack() as stack:
        ranks = []
        for rank in range(world):
            command = ["-m", "tests.loader.checkpoint_program", rank, world, store, folder, kind, steps]
            ranks.append(stack.enter_context(programs.Program(command, cwd=programs.ROOT, env=environment)))
        said = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, said

    outputs = [json.loads(out) for out, _ in said]
    counts = {count for count, _ in outputs}
    assert len(counts) == 1
    parts = [batches for _, batches in outputs]
    if kind == "replicas" and world > 1:
        assert parts[0::2] == parts[1::2], "ranks of one replica train on the same batches"
        parts = parts[0::2]
    together = [zip(*step, strict=True) for step in zip(*parts, strict=True)]
    return counts.pop(), [[number for place in step for number in place] for step in together]


def whole(kind: str) -> list[list[int]]:
    return [batch.tolist() for batch in loader_of(kind, 0, 1)]


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize(
    ("kind", "worlds"),
    [
        ("map", (2, 3, 1)),
        ("map", (3, 1, 2)),
        ("stream", (2, 3, 1)),
        ("stream", (1, 2, 3)),
        ("replicas", (4, 2, 1)),
        ("replicas", (2, 4, 1)),
    ],
)
def test_a_checkpoint_loads_on_another_number_of_ranks(kind: str, worlds: tuple[int, ...], tmp_path: Path) -> None:
    seen: list[list[int]] = []
    for world, steps in zip(worlds, (2, 1, 0), strict=True):
        count, batches = train(tmp_path / "checkpoint", kind, world, steps)
        seen += batches
        assert count == len(seen)
    assert seen == whole(kind)


def test_it_is_a_stateful_of_torch() -> None:
    assert isinstance(headrace.LoaderState(loader_of("map", 0, 1)), Stateful)


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_without_a_process_group_it_holds_the_state_of_the_loader(kind: str) -> None:
    loader = loader_of(kind, 0, 1)
    assert len(list(islice(loader, 2))) == 2
    state = headrace.LoaderState(loader).state_dict()
    resumed = loader_of(kind, 0, 1)
    headrace.LoaderState(resumed).load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == whole(kind)[2:]


@pytest.mark.parametrize(
    ("state", "error", "found"),
    [
        ({}, UsageError, "no state of a headrace.LoaderState"),
        ({"ranks": "text"}, UsageError, "no state of a headrace.LoaderState"),
        (loader_of("map", 0, 1).state_dict(), UsageError, "batch_size"),
        ({"ranks": b"{"}, StateError, "a saved state is damaged"),
        ({"ranks": b"[1]"}, StateError, "a list"),
        ({"ranks": b'{"a": 1}'}, StateError, "no state of a headrace.DataLoader"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, error: type[Exception], found: str) -> None:
    loader = loader_of("map", 0, 1)
    with pytest.raises(error, match=found):
        headrace.LoaderState(loader).load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole("map")


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(UsageError, match=r"(?s)headrace\.LoaderState\(loader=\).*a headrace\.DataLoader"):
        headrace.LoaderState([1, 2])
