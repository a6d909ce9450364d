"""`fixed_addresses=True`: each batch comes with its own numbers, in memory that is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import headrace
from headrace.core.errors import UsageError
from headrace.testing import SimulatedAccelerator


@pytest.fixture
def accelerator() -> Iterator[SimulatedAccelerator]:
    with SimulatedAccelerator(5) as simulated:
        yield simulated


IMAGES = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(3))
CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda images: images,
    "centre": lambda images: images[..., 2:6, 2:6],
    "rows": lambda images: images[..., 2:6, :],
    "every other channel": lambda images: images[:, ::2],
    "turned": lambda images: images.transpose(2, 3),
    "channels last": lambda images: images.to(memory_format=torch.channels_last),
    "expanded": lambda images: images[:, :1, :1, :1].expand(-1, 3, 8, 8),
    "at times with gaps": lambda images: images.transpose(2, 3) if images[0, 0, 0, 0] < 0.5 else images.clone(),
}


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_each_batch_has_its_own_numbers(cut: Callable[[torch.Tensor], torch.Tensor], num_workers: int) -> None:
    loader = headrace.DataLoader(
        TensorDataset(IMAGES), 8, num_workers=num_workers, device="cpu", fixed_addresses=True,
        device_transform=lambda batch: [cut(batch[0])],
    )  # fmt: skip
    for _ in range(2):
        addresses = set()
        for number, (images,) in enumerate(loader):
            addresses.add(images.data_ptr())
            assert torch.equal(images, cut(IMAGES[8 * number : 8 * number + 8]))
        assert (number, len(addresses)) == (2, 1)


def test_a_crop_on_the_device_comes_as_it_is(accelerator: SimulatedAccelerator) -> None:
    def crop(batch: list[torch.Tensor]) -> torch.Tensor:
        accelerator.synchronize()
        return batch[0][..., 2:6, 2:6]

    loader = headrace.DataLoader(
        TensorDataset(IMAGES), 8, num_workers=1, device="cuda", device_transform=crop, fixed_addresses=True
    )
    found: list[bytes] = []
    for images in loader:
        accelerator.seen(images, found.append)
    accelerator.synchronize()
    expected = [IMAGES[first : first + 8, :, 2:6, 2:6].contiguous().numpy().tobytes() for first in (0, 8, 16)]
    assert found == expected


class Kept(Dataset[torch.Tensor]):
    """Gives out tensors that it keeps."""

    def __init__(self) -> None:
        self.rows = [torch.full((2,), float(number)) for number in range(5)]

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def test_the_tensors_of_the_dataset_and_of_the_transform_stay_as_they_are() -> None:
    dataset = Kept()
    for _ in range(2):
        loader = headrace.DataLoader(dataset, batch_size=None, device="cpu", fixed_addresses=True)
        assert [batch.tolist() for batch in loader] == [[float(number)] * 2 for number in range(5)]

    mine = iter([torch.zeros(2), torch.ones(2)])
    held = []

    def transform(batch: torch.Tensor) -> torch.Tensor:
        held.append(next(mine))
        return held[-1]

    loader = headrace.DataLoader(
        dataset, batch_size=None, sampler=[0, 1], device="cpu", device_transform=transform, fixed_addresses=True
    )
    assert [batch.tolist() for batch in loader] == [[0.0, 0.0], [1.0, 1.0]]
    assert [one.tolist() for one in held] == [[0.0, 0.0], [1.0, 1.0]]


def test_a_sparse_tensor_is_refused() -> None:
    loader = headrace.DataLoader(
        Kept(), 5, device="cpu", device_transform=lambda batch: batch.to_sparse(), fixed_addresses=True
    )
    with pytest.raises(UsageError, match=r"only plain tensors can have fixed addresses(.|\n)*torch\.sparse_coo"):
        next(iter(loader))
