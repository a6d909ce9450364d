"""What runs on the device behind the copy: transforms with numbers of their own, fixed addresses, compiled steps."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import headrace
from headrace.core.errors import UsageError
from headrace.testing import SimulatedAccelerator


@pytest.fixture
def accelerator() -> Iterator[SimulatedAccelerator]:
    with SimulatedAccelerator(11) as simulated:
        yield simulated


class Keys(Dataset[Any]):
    """Sample k is k."""

    def __init__(self, length: int = 48) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor([float(key)])


def noisy(accelerator: SimulatedAccelerator) -> Callable[[torch.Tensor], torch.Tensor]:
    """A transform that draws from all generators that there are."""

    def transform(batch: torch.Tensor) -> torch.Tensor:
        accelerator.synchronize()  # what torch computes itself is not simulated
        noise = torch.rand(len(batch), 1) + np.random.rand() + headrace.rng().random()
        return torch.cat([batch, noise], 1)

    return transform


def rows(batches: Any) -> list[list[float]]:
    return [row for batch in batches for row in batch.tolist()]


def test_a_transform_draws_the_same_numbers_after_a_resume_and_with_other_workers(
    accelerator: SimulatedAccelerator,
) -> None:
    how: dict[str, Any] = {"device": "cuda", "device_transform": noisy(accelerator), "shuffle": True, "seed": 5}
    loader = headrace.DataLoader(Keys(), 4, num_workers=2, ahead=2, **how)
    whole = rows(loader)
    second = rows(loader)
    assert second != whole

    loader = headrace.DataLoader(Keys(), 4, num_workers=0, **how)
    first = rows(itertools.islice(loader, 5))
    again = headrace.DataLoader(Keys(), 4, num_workers=1, **how)
    again.load_state_dict(loader.state_dict())
    assert first + rows(again) == whole
    assert rows(again) == second


@pytest.mark.quick
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_draw_different_numbers_and_each_batch_its_own(rank: int, accelerator: SimulatedAccelerator) -> None:
    found = {}
    for other in (rank, 1 - rank):
        loader = headrace.DataLoader(
            Keys(), 4, device="cuda", device_transform=noisy(accelerator), shard=headrace.Shard(other, 2)
        )
        found[other] = rows(loader)
    noise = [row[1] for part in found.values() for row in part]
    assert len(set(noise)) == 48


def test_a_transform_leaves_the_generators_as_they_were(accelerator: SimulatedAccelerator) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    for _ in headrace.DataLoader(Keys(), 4, seed=1, device="cuda", device_transform=noisy(accelerator)):
        pass
    assert torch.equal(torch.rand(3), expected)


def test_without_a_seed_numbers_come_from_the_generators_as_they_are(accelerator: SimulatedAccelerator) -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        np.random.seed(1)
        loader = headrace.DataLoader(Keys(), 4, device="cuda", device_transform=lambda batch: torch.rand(len(batch)))
        found.append([batch.tolist() for batch in loader])
    assert found[0] == found[1]


def test_a_module_runs_on_the_device_and_without_gradients(accelerator: SimulatedAccelerator) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
            self.moved: list[Any] = []

        def to(self, *args: Any, **kwargs: Any) -> Scaled:  # type: ignore[override]
            self.moved.append(args)
            return self

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            accelerator.synchronize()
            return batch * self.scale

    module = Scaled()
    (batch,) = headrace.DataLoader(Keys(4), 4, device="cuda", device_transform=module)
    assert batch.tolist() == [[0.0], [2.0], [4.0], [6.0]]
    assert not batch.requires_grad
    assert module.moved == [(accelerator.device,)]


class Meeting(Keys):
    """Sample 8 is begun before a transform draws, and is there only when that has drawn."""

    def __init__(self) -> None:
        super().__init__(12)
        self.began = threading.Event()
        self.drew = threading.Event()

    def __getitem__(self, key: int) -> torch.Tensor:
        if key == 8 and threading.current_thread() is not threading.main_thread():
            self.began.set()
            assert self.drew.wait(30)
        return super().__getitem__(key)


def test_worker_threads_do_not_take_the_draws_of_a_transform_for_those_of_the_dataset() -> None:
    dataset = Meeting()

    def transform(batch: torch.Tensor) -> torch.Tensor:
        if loader.num_workers:
            assert dataset.began.wait(30)
        noise = torch.rand(len(batch), 1)
        dataset.drew.set()
        return torch.cat([batch, noise], 1)

    how: dict[str, Any] = {"seed": 5, "device": "cpu", "device_transform": transform}
    loader = headrace.DataLoader(dataset, 4, **how)
    expected = rows(loader)
    dataset.drew.clear()
    loader = headrace.DataLoader(dataset, 4, num_workers=2, backend="thread", **how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(loader) == expected


def test_a_transform_may_be_one_that_seeds() -> None:
    def noise(images: torch.Tensor) -> torch.Tensor:
        return images + torch.rand(images.shape)

    how: dict[str, Any] = {"seed": 5, "device": "cpu", "device_transform": headrace.transforms.kornia(noise)}
    images = TensorDataset(torch.zeros(12, 3, 2, 2))
    before = torch.get_rng_state()
    found = []
    for more in ({}, {"num_workers": 2, "backend": "thread"}):
        loader = headrace.DataLoader(images, 4, collate_fn=first_tensors, **how, **more)
        found.append([batch.tolist() for batch in loader])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert torch.equal(torch.get_rng_state(), before)


def first_tensors(samples: list[Any]) -> torch.Tensor:
    return torch.stack([sample[0] for sample in samples])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_an_accelerator_a_transform_runs_here(num_workers: int) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = headrace.DataLoader(
        Keys(8),
        4,
        num_workers=num_workers,
        seed=1,
        device="auto",
        device_transform=lambda batch: torch.rand(len(batch)),
    )
    with pytest.warns(UserWarning, match="no accelerator is found"):
        first = [batch.tolist() for batch in loader]
    again = headrace.DataLoader(
        Keys(8), 4, seed=1, device="cpu", device_transform=lambda batch: torch.rand(len(batch)), fixed_addresses=True
    )
    found = []
    addresses = set()
    for batch in again:
        addresses.add(batch.data_ptr())
        found.append(batch.tolist())
    assert found == first
    assert len(addresses) == 1


def test_a_stop_iteration_of_a_transform_does_not_end_the_epoch() -> None:
    partners = iter([torch.ones(1)] * 2)
    loader = headrace.DataLoader(Keys(12), 4, device="cpu", device_transform=lambda batch: batch + next(partners))
    iterator = iter(loader)
    assert [next(iterator)[0].item(), next(iterator)[0].item()] == [1.0, 5.0]
    with pytest.raises(RuntimeError, match="device_transform raised StopIteration"):
        next(iterator)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_change_in_place_that_is_interrupted_is_made_anew_from_the_batch_as_it_was(num_workers: int) -> None:
    interrupts = iter([False, True, False, False])

    def transform(batch: torch.Tensor) -> torch.Tensor:
        batch.add_(100)
        if next(interrupts):
            raise KeyboardInterrupt
        return batch

    iterator = iter(headrace.DataLoader(Keys(12), 4, num_workers=num_workers, device="cpu", device_transform=transform))
    assert next(iterator)[0].item() == 100
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [batch[0].item() for batch in iterator] == [104, 108]


def test_a_change_in_place_leaves_the_tensors_of_the_dataset_alone() -> None:
    rows_kept = [torch.zeros(2), torch.ones(2)]
    loader = headrace.DataLoader(
        rows_kept,
        batch_size=None,
        device="cpu",
        device_transform=lambda row: row.add_(1),  # type: ignore[arg-type]
    )
    assert [[row.tolist() for row in loader] for _ in range(2)] == [[[1.0, 1.0], [2.0, 2.0]]] * 2


def test_what_a_transform_raises_takes_the_place_of_its_batch(accelerator: SimulatedAccelerator) -> None:
    def transform(batch: torch.Tensor) -> torch.Tensor:
        accelerator.synchronize()
        if batch[0] == 4:
            raise ValueError("not this one")
        return batch

    iterator = iter(headrace.DataLoader(Keys(12), 4, num_workers=1, device="cuda", device_transform=transform))
    assert next(iterator).tolist()[0] == [0.0]
    with pytest.raises(ValueError, match="not this one"):
        next(iterator)
    assert next(iterator).tolist()[0] == [8.0]


def test_batches_at_fixed_addresses_are_read_where_the_first_one_lay(accelerator: SimulatedAccelerator) -> None:
    dataset = TensorDataset(torch.arange(4800.0).view(48, 100), torch.arange(48))
    loader = headrace.DataLoader(dataset, 4, num_workers=2, device="cuda", fixed_addresses=True)
    found: list[bytes] = []
    addresses = set()
    for _ in range(2):
        for images, labels in loader:
            addresses.add((images.data_ptr(), labels.data_ptr()))
            accelerator.seen(images, found.append)
            accelerator.seen(labels, found.append)
    accelerator.synchronize()
    expected = [part.numpy().tobytes() for batch in headrace.DataLoader(dataset, 4) for part in batch]
    assert found == 2 * expected
    assert len(addresses) == 1
    assert accelerator.driver.faults == []


def test_batches_of_other_shapes_have_no_fixed_addresses(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Keys(10), 4, device="cuda", fixed_addresses=True)
    with pytest.raises(UsageError, match=r"float32 \[2, 1\]\n.*float32 \[4, 1\]\n.*drop_last=True"):
        list(loader)


def test_what_moves_itself_has_no_fixed_address(accelerator: SimulatedAccelerator) -> None:
    class Graph:
        def to(self, device: torch.device, non_blocking: bool = False) -> Graph:
            return self

    loader = headrace.DataLoader(
        Keys(4), 4, device="cuda", fixed_addresses=True, collate_fn=lambda samples: [Graph(), torch.stack(samples)]
    )
    with pytest.raises(UsageError, match="only plain tensors can have fixed addresses"):
        list(loader)


@pytest.mark.timeout(120)
def test_a_compiled_step_is_not_compiled_again_for_the_batches_of_a_loader(accelerator: SimulatedAccelerator) -> None:
    compiled = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    dataset = TensorDataset(torch.rand(800, 3, 8, 8), torch.arange(800), torch.rand(800))
    torch._dynamo.reset()

    @torch.compile(backend=backend)
    def step(images: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (images.flatten(1).mean(1) * weights + labels).sum()

    for images, labels, weights in headrace.DataLoader(dataset, 8, num_workers=2, device="cuda", ahead=2):
        # The compiler asks torch for the device's streams, which the simulation has not.
        with mock.patch.object(torch.accelerator, "is_available", lambda: False):
            step(images, labels, weights)
    assert compiled == 1
