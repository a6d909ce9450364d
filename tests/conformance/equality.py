"""Equality of nested batches, down to types and bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8)


def assert_same(expected: Any, actual: Any) -> None:
    """Same types at every level, same dtypes and shapes, same bytes."""
    assert type(expected) is type(actual)
    if isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
        assert torch.equal(bytes_of(expected), bytes_of(actual))
    elif isinstance(expected, np.ndarray):
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
        assert expected.tolist() == actual.tolist()
    elif isinstance(expected, Mapping):
        assert list(expected) == list(actual)
        for key in expected:
            assert_same(expected[key], actual[key])
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        assert len(expected) == len(actual)
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)
    else:
        assert expected == actual
