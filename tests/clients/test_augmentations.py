"""Albumentations keeps random generators of its own: with `seed=` its crops are those of the sample, in any worker."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

import headrace

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("albumentations") is None,
        reason="albumentations is not installed: `make test-clients` installs it",
    ),
]


class Crops(torch.utils.data.Dataset[torch.Tensor]):
    """Random crops of one image, whose pixels are their numbers, with noise from NumPy's generator of the transform."""

    def __init__(self) -> None:
        import albumentations

        self.transform = albumentations.Compose(
            [
                albumentations.RandomCrop(8, 8),
                albumentations.OneOf([albumentations.HorizontalFlip(p=1), albumentations.GaussNoise(p=1)]),
            ]
        )
        self.image = np.arange(4096, dtype=np.float32).reshape(64, 64, 1) / 4096

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.transform(image=self.image)["image"]))


def epochs_of(loader: Any, count: int = 2) -> list[list[Any]]:
    return [[image.tolist() for batch in loader for image in batch] for _ in range(count)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_crops_are_those_of_the_sample_whichever_worker_makes_them(method: str) -> None:
    expected = epochs_of(headrace.DataLoader(Crops(), 4, seed=3))
    images = [str(image) for epoch in expected for image in epoch]
    assert len(set(images)) > 0.9 * len(images)  # some crops may come twice by chance
    loader = headrace.DataLoader(Crops(), 4, seed=3, num_workers=2, multiprocessing_context=method)
    assert epochs_of(loader) == expected


def test_a_resumed_run_makes_the_same_crops() -> None:
    whole = headrace.DataLoader(Crops(), 4, seed=3)
    (expected,) = epochs_of(whole, 1)
    stopped = headrace.DataLoader(Crops(), 4, seed=3, num_workers=2)
    batches = iter(stopped)
    head = [image.tolist() for _ in range(5) for image in next(batches)]
    resumed = headrace.DataLoader(Crops(), 4, seed=3, num_workers=1)
    resumed.load_state_dict(stopped.state_dict())
    (rest,) = epochs_of(resumed, 1)
    assert head + rest == expected


def test_without_a_seed_the_report_says_that_workers_draw_alike() -> None:
    loader = headrace.DataLoader(Crops(), 4, num_workers=2)
    epochs_of(loader, 1)
    named = [finding for finding in loader.diagnose().findings if finding.name == "generator-copied"]
    assert any("Crops.transform" in str(finding) for finding in named)
