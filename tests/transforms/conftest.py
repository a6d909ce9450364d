"""A simulated CUDA device, and a library that decodes JPEGs on it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headrace.core.text import log_once
from headrace.testing import SimulatedAccelerator
from tests.transforms.simulated_cuda import SimulatedCuda, StandIn, forget_libraries


@pytest.fixture
def looked_for_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has a test hear what is said once in a process, and look for libraries anew."""
    monkeypatch.setattr(log_once, "_said", set())
    forget_libraries()
    yield
    forget_libraries()


@pytest.fixture
def accelerator() -> Iterator[SimulatedAccelerator]:
    with SimulatedAccelerator(3) as simulated:
        yield simulated
        gc.collect()
        simulated.synchronize()
        assert simulated.driver.faults == []


@pytest.fixture
def cuda(accelerator: SimulatedAccelerator, monkeypatch: pytest.MonkeyPatch) -> SimulatedCuda:
    return SimulatedCuda(accelerator, monkeypatch)


@pytest.fixture
def torchvision(accelerator: SimulatedAccelerator, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Stands in for torchvision with CUDA, which cannot be had on a machine without a GPU."""
    return StandIn(accelerator).installed("torchvision", monkeypatch)
