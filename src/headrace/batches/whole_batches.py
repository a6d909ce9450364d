"""Whole batches: datasets that make a batch themselves, without a Python loop over its samples.

Such a dataset has, besides torch's methods, `fetch_batch(keys, out)`: keys are int64 [batch] (a list of whole numbers
will do), `out` is a `BatchMemory` in which it may put the batch's tensors, and it returns the collated batch. A method
of this name without an argument `out` is another one. It is called in place of `__getitem__` and default collation, so
a `collate_fn` of the user's turns it off. It draws no random numbers, unless its attribute `draws` is true: only then
are they seeded for it, see `core.rng.enter_step`.

torch's `TensorDataset` counts as one of them; see `tensor_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset, TensorDataset

from headrace.batches.collate import SlotCollate
from headrace.batches.tensor_rows import gather_rows
from headrace.core.batch_memory import BatchMemory, OwnMemory
from headrace.core.protocols import answers
from headrace.core.torch_internals import torch_default_collate


def fetches_batches(dataset: object) -> bool:
    """Tells whether a dataset, or what it is a subset of, makes whole batches."""
    while type(dataset) is Subset:
        dataset = dataset.dataset

    if type(dataset) is TensorDataset:
        return True
    for kind in type(dataset).__mro__:
        if "fetch_batch" in vars(kind) and answers(dataset, "fetch_batch", 1, "out"):
            return True
        # A subclass that changes what samples are, and says nothing of batches: the batches of its base class would be
        # of other samples.
        if not {"__getitem__", "__getitems__"}.isdisjoint(vars(kind)):
            return False

    return False


def makes_batches(dataset: object, collate: Callable[[Any], Any]) -> bool:
    """Tells whether batches come whole from a dataset: it makes them, and nobody collates in another way."""
    return fetches_batches(dataset) and memory_of(collate) is not None


def draws_numbers(dataset: object) -> bool:
    """Tells whether what makes whole batches may draw random numbers for them."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "draws", False))


def whole_batches(dataset: Any, collate: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
    """Returns what makes a batch from its keys; None if samples must be collated one by one."""
    memory = memory_of(collate)
    if memory is None or not fetches_batches(dataset):
        return None

    numbers: list[Sequence[int]] = []
    while type(dataset) is Subset:
        numbers.append(dataset.indices)
        dataset = dataset.dataset

    fetch_batch = _fetching(dataset, memory, collate)
    if not numbers:
        return fetch_batch

    # One look into an array for each subset around the dataset, the outermost first.
    tables = [np.asarray(indices, np.int64) for indices in numbers]

    def fetch(keys: Sequence[int] | npt.NDArray[np.int64]) -> Any:
        for table in tables:
            keys = table[keys]
        return fetch_batch(keys)

    return fetch


def _fetching(dataset: Any, memory: BatchMemory, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if type(dataset) is not TensorDataset:
        return lambda keys: dataset.fetch_batch(keys, out=memory)

    def fetch(keys: Any) -> Any:
        batch = gather_rows(dataset, keys, memory)
        if batch is not None:
            return batch
        # As torch's samplers give them: a tensor is asked for row 3, not for row np.int64(3).
        if isinstance(keys, np.ndarray):
            keys = keys.tolist()
        return collate([dataset[key] for key in keys])

    return fetch


def memory_of(collate: Callable[[Any], Any]) -> BatchMemory | None:
    """Returns where a collate function makes its batches, if it is the default one; None for any other."""
    if collate is torch_default_collate:
        return OwnMemory()
    if isinstance(collate, SlotCollate):
        return collate.memory
    return None
