"""Loads stored data for a while with some numbers of workers, and records it: what `headrace doctor DATA` compares."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from headrace.core.process.machine import cores
from headrace.data.stored import StoredDataset
from headrace.loader.dataloader import DataLoader
from headrace.telemetry.formatting import some
from headrace.telemetry.recording import Recording

WARM = 0.5
"""Seconds for which a loader runs before it is measured."""

LOOK = 16
"""Samples that are looked at to see whether all have one shape."""


def record_loading(
    dataset: StoredDataset, batch_size: int, workers: int, seconds: float, *, collate_fn: Callable[[Any], Any] | None
) -> Recording:
    """Loads a dataset for so many seconds with so many workers, and returns the record.

    More workers than cores are a trial like any other, so the warnings about them are not shown.
    """
    logger = logging.getLogger("headrace")
    level = logger.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        logger.setLevel(logging.ERROR)
        try:
            loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, collate_fn=collate_fn, seed=0)
            _load_for(loader, seconds)
        finally:
            logger.setLevel(level)

    recording: Recording = loader.recording
    setting = replace(recording.setting, tuned=True)  # the best number of workers will be what was measured
    return replace(recording, label=some(workers, "worker"), setting=setting)


def _load_for(loader: DataLoader[Any], seconds: float) -> None:
    ends = time.perf_counter() + WARM + seconds
    while time.perf_counter() < ends:
        for _ in loader:
            if time.perf_counter() >= ends:
                return


def differ_in_size(dataset: StoredDataset) -> bool:
    """Tells whether arrays of some column have several shapes, so that no batch can hold them. Looks at some samples.

    Ragged columns do not count: they have a batch of their own.
    """
    count = min(len(dataset), LOOK)
    samples = [dataset[int(index)] for index in np.linspace(0, len(dataset) - 1, count)]
    for field in dataset.schema:
        values = map(itemgetter(field.name), samples)
        if field.kind != "ragged" and not _are_of_one_shape(values):
            return True

    return False


def collate_apart(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a batch in which columns of several shapes are lists of tensors."""
    batch: dict[str, Any] = {}
    for name in samples[0]:
        values = list(map(itemgetter(name), samples))
        if _are_of_one_shape(values):
            batch[name] = default_collate(values)
        else:
            batch[name] = list(map(torch.as_tensor, values))

    return batch


def _are_of_one_shape(values: Iterable[npt.ArrayLike]) -> bool:
    return len(set(map(np.shape, values))) <= 1


def worker_counts_to_try() -> list[int]:
    """Returns the numbers of workers that are worth a look on this machine."""
    return sorted({0, 1, cores(), 2 * cores()})
