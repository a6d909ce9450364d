"""Batches are pinned by torch's rules, whether torch names a device or not."""

from __future__ import annotations

import pytest

from headrace.device.pinning import pin


class Pinnable:
    """A batch that knows how to pin itself."""

    pinned = False

    def pin_memory(self, device: str | None = None) -> Pinnable:
        self.pinned = True
        return self


@pytest.mark.parametrize("device", ["cuda", None])
def test_a_batch_is_pinned_also_if_torch_names_no_device(device: str | None) -> None:
    (batch,) = pin([Pinnable()], device)
    assert batch.pinned
