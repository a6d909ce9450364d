"""A transform that runs on the device: on the user's stream, with random numbers that the batch alone decides.

On the user's stream, since what is allocated on another one belongs to that one, and takes memory for itself. And
kernels of a transform would only take turns with those of the model.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.core.randomness.rng import begin_stream, global_states_kept


class DeviceTransform:
    """Applies a function to whole batches on a device, without gradients."""

    def __init__(self, function: Callable[[Any], Any], device: torch.device) -> None:
        """function: gets a batch on the device and returns one. A module is moved to the device."""
        self._function = function
        self._device = device
        if isinstance(function, torch.nn.Module):
            function.to(device)

    def __call__(self, batch: Any, key: int | None) -> Any:
        """Returns the transformed batch. key: of its random numbers; None: they come from the generators as they
        are."""
        with torch.no_grad():
            if key is None:
                return self._function(batch)
            with _seeded(self._device, key):
                return self._function(batch)


@contextlib.contextmanager
def _seeded(device: torch.device, key: int) -> Iterator[None]:
    """Seeds all generators that a transform may draw from, those of the device too, and leaves them as they were."""
    with global_states_kept(), _device_state_kept(device, key):
        begin_stream(key)
        random.seed(key)
        np.random.seed(key & 0xFFFFFFFF)
        torch.default_generator.manual_seed(key)
        yield


@contextlib.contextmanager
def _device_state_kept(device: torch.device, key: int) -> Iterator[None]:
    if device.type == "cpu":
        yield
        return

    module: Any = torch.get_device_module(device)
    before = module.get_rng_state(device)
    try:
        if device.type == "cuda":
            module.default_generators[device.index].manual_seed(key)  # of this device alone
        else:
            module.manual_seed(key)
        yield
    finally:
        module.set_rng_state(before, device)
