"""Where versions of torch differ. The loaders follow the torch that is installed, and so do the tests."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.utils.data.dataloader

_SOURCE = inspect.getsource(torch.utils.data.dataloader)


def torch_says(text: str) -> bool:
    """Tells whether the loader of this torch has such a message."""
    return text in _SOURCE


def message(text: str) -> str:
    """The pattern for an assertion of torch. Older versions assert the same without a word."""
    return f"^{text}$" if torch_says(text) else ".*"


warns_of_no_accelerator = pytest.mark.skipif(
    not torch_says("no accelerator is found"),
    reason="this torch leaves pinning out without a warning where there is no accelerator",
)
ignores_the_device_of_pinning = pytest.mark.skipif(
    not torch_says("pin_memory_device is deprecated"),
    reason="this torch pins for the device that pin_memory_device names, also where there is none",
)
warns_of_what_cannot_be_pickled = pytest.mark.skipif(
    not torch_says("Got pickle error when attempting to start a worker Process"),
    reason="this torch does not warn before the error",
)


def error_of_a_cast() -> type[Exception]:
    """What torch raises if tensors are stacked into one whose type cannot hold them."""
    samples = [torch.ones(2, dtype=torch.int64), torch.full((2,), 1.5)]
    try:
        torch.stack(samples, out=torch.empty(0, dtype=torch.int64))
    except (TypeError, RuntimeError) as error:
        return type(error)
    raise AssertionError("torch stacked floats into whole numbers")
