"""The simulated accelerator, as a test of somebody's training loop uses it."""

from __future__ import annotations

import pytest
import torch

import headrace
from headrace.testing import SimulatedAccelerator


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_torchs_optimizers_step(optimizer: type[torch.optim.Optimizer]) -> None:
    layer = torch.nn.Linear(3, 1)
    before = layer.weight.detach().clone()
    with SimulatedAccelerator():
        steps = optimizer(layer.parameters(), lr=0.1)  # type: ignore[call-arg]
        layer(torch.ones(2, 3)).sum().backward()
        steps.step()
    assert not torch.equal(layer.weight, before)


def test_a_model_is_compiled() -> None:
    with SimulatedAccelerator():
        assert torch.compile(lambda values: values * 2, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_tensor_with_gaps_is_not_looked_at() -> None:
    with SimulatedAccelerator() as accelerator:
        there = accelerator.moved(torch.arange(6.0).reshape(2, 3))
        found: list[bytes] = []
        accelerator.seen(there.t(), found.append)
        with pytest.raises(ValueError, match="the tensor has gaps"):
            accelerator.seen(there[:, ::2], found.append)
        accelerator.synchronize()
    assert found == [torch.arange(6.0).numpy().tobytes()]


@pytest.mark.parametrize("how", [{"pin_memory": True}, {"device": "cuda"}])
def test_sparse_batches_come(how: dict[str, object]) -> None:
    with SimulatedAccelerator():
        loader = headrace.DataLoader(
            [torch.eye(3)],
            collate_fn=lambda samples: samples[0].to_sparse(),
            **how,  # type: ignore[arg-type]
        )
        (batch,) = loader
    assert torch.equal(batch.to_dense(), torch.eye(3))


def test_a_piece_of_work_that_is_interrupted_is_done_again() -> None:
    interrupts = [KeyboardInterrupt]
    found: list[bytes] = []

    def look(content: bytes) -> None:
        if interrupts:
            raise interrupts.pop()
        found.append(content)

    with SimulatedAccelerator(seed=2) as accelerator:
        there = accelerator.moved(torch.zeros(1))
        with pytest.raises(KeyboardInterrupt):
            accelerator.seen(there, look)
            accelerator.synchronize()
        accelerator.synchronize()
    assert found == [bytes(4)]
