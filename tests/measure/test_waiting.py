"""Waiting is measured the same way for every loader, and measuring changes nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

import headrace
from headrace.core.process.memory import tree_memory
from headrace.measure.measurement import MeasuredLoader, Measurement
from headrace.measure.wait_shares import EpochWatch, LoaderRecord
from headrace.telemetry.batch_size import batch_length
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.recording import Setting


class Steps:
    """A clock that goes on by what it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowIterator:
    """Takes two seconds for each of three batches."""

    def __init__(self, clock: Steps) -> None:
        self.clock = clock
        self.left = 3

    def _next_data(self) -> Any:
        self.clock.now += 2.0
        if not self.left:
            raise StopIteration
        self.left -= 1
        return torch.zeros(5, 2)


def record_of(recorder: Recorder) -> LoaderRecord:
    record = LoaderRecord("", "torch", 0)
    record.take_over(recorder)
    return record


def test_time_in_next_is_waiting_and_time_between_is_not() -> None:
    clock, recorder = Steps(), Recorder("train.py:1")
    iterator = SlowIterator(clock)
    recorder.begin_epoch(clock(), Setting(), fresh=True)
    watch = EpochWatch(recorder, clock)
    clock.now += 1.0  # what iter(loader) took
    watch.attach(iterator)
    for _ in range(3):
        iterator._next_data()
        clock.now += 10.0  # training
    watch.flush()
    record = record_of(recorder)
    assert (record.epochs, record.batches, record.samples) == (1, 3, 15)
    assert record.waited == 1.0 + 3 * 2.0
    assert record.looped == record.waited + 2 * 10.0
    assert record.first_batches == [3.0]
    assert record.samples_per_second == 15 / 27.0


def test_waiting_for_the_end_of_an_epoch_is_waiting() -> None:
    recorder = Recorder("train.py:1")
    recorder.begin_epoch(time.perf_counter(), Setting(), fresh=True)
    before = record_of(recorder).waited
    recorder.end_epoch(recorder.epoch, 0, time.perf_counter() - 5.0)
    assert record_of(recorder).waited - before >= 5.0


def test_more_batches_than_are_held_back_are_all_counted_in_order() -> None:
    recorder = Recorder("train.py:1")
    loader = TorchLoader(torch.arange(10_000))
    recorder.begin_epoch(time.perf_counter(), Setting(), fresh=True)
    watch = EpochWatch(recorder)
    iterator = iter(loader)
    watch.attach(iterator)
    assert sum(1 for _ in iterator) == 10_000
    record = record_of(recorder)
    assert (record.batches, record.samples) == (10_000, 10_000)
    assert recorder.latest["number"][-1] == 9_999
    assert (np.diff(recorder.latest["number"]) == 1).all()


def test_a_loader_that_was_never_used_has_no_speed() -> None:
    assert LoaderRecord("train.py:1", "torch", 0).as_dict()["samples_per_second"] == 0.0


@pytest.mark.parametrize(
    ("batch", "length"),
    [
        (torch.zeros(4, 2), 4),
        (np.zeros((7, 1)), 7),
        (torch.tensor(1.0), 1),
        ([torch.zeros(3, 2), torch.zeros(3)], 3),
        ({"x": torch.zeros(6), "y": None}, 6),
        ((["a", "b"], 1), 2),
        ("text", 1),
        (None, 1),
        ([], 1),
        ({}, 1),
    ],
)
def test_a_batch_is_counted_by_its_first_tensor(batch: Any, length: int) -> None:
    assert batch_length(batch) == length


@pytest.mark.parametrize("loader_class", [TorchLoader, headrace.DataLoader])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_watched_iterator_delivers_the_same_and_is_freed_at_once(loader_class: Any, num_workers: int) -> None:
    recorder = Recorder("train.py:1")
    recorder.begin_epoch(time.perf_counter(), Setting(), fresh=True)
    iterator = iter(loader_class(range(10), batch_size=4, num_workers=num_workers))
    EpochWatch(recorder).attach(iterator)
    assert [batch.tolist() for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    record = record_of(recorder)
    assert (record.batches, record.samples) == (3, 10)
    gone = weakref.ref(iterator)
    gc.disable()  # it must go without the collector
    try:
        del iterator
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_tree_counts_children() -> None:
    alone = tree_memory(os.getpid())
    code = "import sys; data = bytearray(100_000_000); print(len(data), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        together = tree_memory(os.getpid())
        child.communicate()
    assert together - alone >= 100_000_000


def test_the_memory_of_a_process_that_is_gone_is_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert tree_memory(child.pid) == 0


@pytest.mark.thorough
def test_the_cost_of_measuring_is_known_for_torch_s_loader_only() -> None:
    measurement = Measurement("train.py")
    recorder = Recorder("train.py:1")
    recorder.begin_epoch(time.perf_counter(), Setting(), fresh=True)
    watch = EpochWatch(recorder)
    iterator = iter(TorchLoader(torch.arange(500)))
    watch.attach(iterator)
    list(iterator)
    measurement.measured.append(MeasuredLoader(LoaderRecord("", "torch", 0), recorder, watch))
    measurement.settle()
    assert 0 < measurement.measuring < measurement.loaders[0].looped
    measurement.measured[0].watch = None
    measurement.settle()
    assert measurement.measuring == 0
