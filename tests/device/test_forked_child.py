"""A forked child that goes on with its parent's iterator: its batches lie in memory of its own."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.testing import SimulatedAccelerator


class Rows(Dataset[torch.Tensor]):
    """Sample k is 2,048 times k."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((2_048,), float(key))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", [{"device": "cuda"}, {"pin_memory": True}])
def test_a_forked_child_that_goes_on_changes_no_batch_of_its_parent(how: dict[str, Any], seed: int) -> None:
    with SimulatedAccelerator(seed) as accelerator:
        iterator = iter(headrace.DataLoader(Rows(), 4, **how))
        found: list[bytes] = []

        def look(batch: torch.Tensor) -> None:
            if "device" not in how:
                batch = accelerator.moved(batch)
            accelerator.seen(batch, found.append)

        for batch in itertools.islice(iterator, 3):
            look(batch)
        child = os.fork()
        if child == 0:
            os._exit(sum(1 for _ in iterator))  # the batches that are left: 13
        _, status = os.waitpid(child, 0)
        for batch in iterator:
            look(batch)
        accelerator.synchronize()
    assert os.waitstatus_to_exitcode(status) == 13
    assert found == [batch.numpy().tobytes() for batch in headrace.DataLoader(Rows(), 4)]
