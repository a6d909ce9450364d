"""A transform that runs on the device: on the user's stream, with random numbers that the batch alone decides.

On the user's stream, since what is allocated on another one belongs to that one, and takes memory for itself. And
kernels of a transform would only take turns with those of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headrace.core.randomness.global_turns import seeded_globals
from headrace.core.randomness.rng import begin_stream


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
                return self._applied(batch)
            with seeded_globals(key, self._device):
                begin_stream(key)
                return self._applied(batch)

    def _applied(self, batch: Any) -> Any:
        try:
            return self._function(batch)
        except StopIteration as error:
            raise RuntimeError("device_transform raised StopIteration") from error  # else it would end the epoch
