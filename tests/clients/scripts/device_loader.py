"""headrace's loader with `device=`: batches that lie on a simulated accelerator when a framework gets them."""

from __future__ import annotations

import multiprocessing
from typing import Any

import headrace
from headrace.testing import SimulatedAccelerator

accelerator = SimulatedAccelerator(3)
if multiprocessing.parent_process() is None:
    accelerator.__enter__()


def arrived(batch: Any) -> Any:
    """Returns a batch when all of its copies are done: what a framework computes with it is not simulated."""
    accelerator.synchronize()
    assert accelerator.driver.faults == []
    return batch


class DataLoader(headrace.DataLoader[Any]):
    """Sends its batches to the accelerator."""

    def __init__(self, *arguments: Any, **words: Any) -> None:
        super().__init__(*arguments, **{"device": "cuda", "device_transform": arrived, **words})
