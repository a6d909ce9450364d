"""The size of a batch, whatever it consists of."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from headrace.telemetry.batch_size import LONG, batch_bytes, batch_length

Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
    ("batch", "length", "nbytes"),
    [
        (torch.zeros(5, 3), 5, 60),
        (torch.zeros(5, 3, dtype=torch.uint8), 5, 15),
        (torch.tensor(3.0), 1, 4),
        (torch.zeros(0, 3), 0, 0),
        (torch.zeros(4, 6)[:, ::2], 4, 48),
        (np.zeros((7, 2)), 7, 112),
        (np.float32(3), 1, 0),
        ([torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)], 5, 100),
        ((torch.zeros(5, 3), ["a"] * 5), 5, 60),
        (Pair(torch.zeros(2, 2), torch.zeros(2)), 2, 24),
        ({"image": torch.zeros(4, 2), "names": ["a"] * 4, "raw": b"abc"}, 4, 35),
        (OrderedDict(deep={"deeper": [torch.zeros(3)]}), 3, 12),
        (MappingProxyType({"a": np.zeros(6, np.int16)}), 6, 12),
        ([b"ab", b"cde"], 2, 5),
        (bytearray(9), 1, 9),
        (memoryview(np.zeros(4)), 4, 32),
        (["a", "b", "c"], 3, 0),
        ({"path": ["a"] * 4, "image": torch.zeros(4, 2)}, 4, 32),
        ({"path": ["a"] * 4, "more": {"image": torch.zeros(4, 2)}}, 4, 32),
        ("a word", 1, 0),
        ([1, 2.5, None], 1, 0),
        ([], 1, 0),
        ({}, 1, 0),
        (None, 1, 0),
        (object(), 1, 0),
        (torch.eye(4).to_sparse(), 4, 0),
        ([torch.eye(4).to_sparse(), torch.zeros(2)], 4, 8),
        ([7] * (LONG + 1), 1, 0),
        ([torch.zeros(2)] * (LONG + 1), 2, 8 * (LONG + 1)),
        ([b"ab"] * (LONG + 1), LONG + 1, 2 * (LONG + 1)),
        ({"path": ["a"] * (LONG + 1), "image": torch.zeros(4, 2)}, 4, 32),
        (["a"] * LONG + [torch.zeros(2)], 2, 8),
        ([torch.zeros(2)] + ["a"] * LONG, 2, 8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_and_bytes_of_all_kinds_of_batches(batch: Any, length: int, nbytes: int) -> None:
    assert (batch_length(batch), batch_bytes(batch)) == (length, nbytes)


@pytest.mark.thorough  # torch imports its compiler for a nested tensor, and all later forks copy that
def test_a_nested_tensor_has_samples_and_no_bytes() -> None:
    batch = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    assert (batch_length(batch), batch_bytes(batch)) == (2, 0)


def test_long_lists_of_labels_are_not_walked_through() -> None:
    class Counted(list[Any]):
        walks = 0

        def __iter__(self) -> Any:
            self.walks += 1
            return super().__iter__()

    labels = Counted(range(100_000))
    assert batch_bytes([torch.zeros(3), labels]) == 12
    assert labels.walks == 0
