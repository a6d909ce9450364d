"""A batch belongs to its user: it may be kept for ever, written to, and freed at any time."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from headrace import DataLoader
from tests.workers.datasets import Nested, Photos, collate_twice

shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
dtypes = st.sampled_from(["uint8", "int16", "int64", "float16", "float32", "float64", "bool"])
specs = st.recursive(
    st.tuples(shapes, dtypes, st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3)
    ),
    max_leaves=4,
)  # fmt: skip


def leaves(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [leaf for part in (batch.values() if isinstance(batch, dict) else batch) for leaf in leaves(part)]


def assert_equal(one: Any, other: Any) -> None:
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs, st.sampled_from([0, 2]), st.integers(1, 40))
def test_kept_batches_never_change_while_further_epochs_run(spec: Any, num_workers: int, batch_size: int) -> None:
    dataset = Nested(40, spec)
    options: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, **options)
    kept = [list(loader) for _ in range(3)]
    for batches in kept:
        for number, batch in enumerate(batches):
            keys = range(number * batch_size, min(len(dataset), (number + 1) * batch_size))
            assert_equal(batch, default_collate([dataset[key] for key in keys]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_writing_into_a_batch_changes_no_other(num_workers: int) -> None:
    loader = DataLoader(Photos(), batch_size=4, num_workers=num_workers)
    for _ in range(3):
        for number, (images, labels) in enumerate(loader):
            assert torch.equal(images[:, 0, 0, 0], torch.arange(4.0) + 4 * number)
            assert torch.equal(labels, torch.arange(4) + 4 * number)
            images.fill_(-1)
            labels.fill_(-1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_small_part_of_a_batch_that_is_kept_keeps_only_itself(num_workers: int) -> None:
    # The sampler is the user's: behind a late batch, workers would make more ahead.
    loader = DataLoader(Photos(200), batch_size=4, num_workers=num_workers, sampler=list(range(200)))
    addresses, labels = set(), []
    for images, batch_labels in loader:
        addresses.add(images.data_ptr())
        labels.append(batch_labels)
    assert torch.equal(torch.cat(labels), torch.arange(200))
    # Of the 50 batches, only those that are under way at a time.
    assert len(addresses) <= 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_outlives_its_iterator_its_loader_and_its_data_set(num_workers: int) -> None:
    loader = DataLoader(Photos(), batch_size=4, num_workers=num_workers)
    images, _ = next(iter(loader))
    del loader
    gc.collect()
    assert torch.equal(images[:, 0, 0, 0], torch.arange(4.0))


def test_batches_may_be_freed_in_another_thread() -> None:
    loader = DataLoader(Photos(400), batch_size=4, num_workers=2)
    handed: list[Any] = []
    ready, done = threading.Semaphore(0), threading.Event()

    def consume() -> None:
        while not done.is_set():
            ready.acquire()
            if handed:
                handed.pop()

    thread = threading.Thread(target=consume)
    thread.start()
    for number, (images, _) in enumerate(loader):
        assert torch.equal(images[:, 1, 1, 1], torch.arange(4.0) + 4 * number)
        handed.append(images)
        ready.release()
    done.set()
    ready.release()
    thread.join()


def test_a_collate_function_that_calls_the_default_writes_into_slots_too() -> None:
    loader = DataLoader(Photos(), batch_size=4, num_workers=2, collate_fn=collate_twice)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            assert torch.equal(batch["images"][:, 0, 0, 0], torch.arange(4.0) + 4 * number), epoch
            batch["images"][:, 0] = 99
            assert bool((batch["red"] == 99).all())


def test_interleaved_iterators_do_not_disturb_each_other() -> None:
    loader = DataLoader(Photos(), batch_size=4, num_workers=1)
    for number, (one, other) in enumerate(zip(loader, loader, strict=True)):
        assert torch.equal(one[1], torch.arange(4) + 4 * number)
        assert torch.equal(one[0], other[0])
        assert one[0].data_ptr() != other[0].data_ptr()


def test_a_batch_can_be_turned_into_numpy_and_back_and_kept() -> None:
    loader = DataLoader(Photos(), batch_size=4, num_workers=2)
    arrays = [images.numpy() for images, _ in loader]
    assert all(np.array_equal(a[:, 0, 0, 0], np.arange(4.0) + 4 * n) for n, a in enumerate(arrays))
