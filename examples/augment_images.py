"""From JPEG files to normalized batches, the same whichever backend decodes them, with targets carried along.

    python examples/augment_images.py

Writes 120 photographs of two kinds, trains on random crops of them, tests on central ones, and mirrors an image
together with its mask and boxes. Uses CUDA where there is one, and Albumentations if it is installed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import headrace
from headrace.transforms import EvalImages, Normalize, TrainImages, albumentations

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
JITTER = (0.4, 0.4, 0.4, 0.05)


def write_photos(root: Path) -> None:
    """Two classes, told apart by the direction of their stripes."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:375, :500]
    for number in range(120):
        name = "lying" if number % 2 else "standing"
        stripes = np.sin((rows if number % 2 else columns) / rng.uniform(4, 12))
        color = rng.uniform(60, 190, 3)
        pixels = color + 50 * stripes[..., None] + rng.normal(0, 8, (375, 500, 3))
        path = root / ("train" if number < 96 else "val") / name / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=88)


def loaders(root: Path, backend: str = "process") -> tuple[headrace.DataLoader, headrace.DataLoader]:
    """The pipelines get the path of the image (`on=0`), decode what they need of it, and write it into the batch."""
    train = headrace.ImageFolder(root / "train").map(TrainImages(96, jitter=JITTER), on=0)
    val = headrace.ImageFolder(root / "val").map(EvalImages(96), on=0)
    how = {"batch_size": 16, "num_workers": 2, "seed": 0, "backend": backend}
    return headrace.DataLoader(train, shuffle=True, **how), headrace.DataLoader(val, **how)


def train_and_test(root: Path) -> float:
    """Returns the accuracy on the photographs for validation after four epochs."""
    torch.manual_seed(0)
    train, val = loaders(root)
    normalize = Normalize()  # on the device: batches travel as bytes
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 7, stride=3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 2),
    ).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    for _ in range(4):
        for images, labels in train:
            optimizer.zero_grad()
            scores = net(normalize(images.to(DEVICE)))
            torch.nn.functional.cross_entropy(scores, labels.to(DEVICE)).backward()
            optimizer.step()
    with torch.no_grad():
        right = [net(normalize(images.to(DEVICE))).argmax(1).cpu() == labels for images, labels in val]
    return torch.cat(right).float().mean().item()


def mirror_with_targets() -> None:
    """A transform of Albumentations on an image, its mask and its boxes."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        import albumentations as album
    except ImportError:
        print("targets: pip install 'headrace[albumentations]' to see them carried along")
        return
    compose = album.Compose(
        [album.HorizontalFlip(p=1)], bbox_params=album.BboxParams(format="pascal_voc", label_fields=["labels"])
    )
    step = albumentations(compose, masks="mask", bboxes="boxes")
    image = np.zeros((60, 80, 3), np.uint8)
    mask = np.zeros((60, 80), np.uint8)
    mask[10:30, 5:25] = 1
    boxes = np.array([[5, 10, 25, 30]], np.float32)
    made = step({"image": image, "mask": mask, "boxes": boxes, "labels": np.array([3])})
    columns = np.flatnonzero(made["mask"].any(axis=0))
    print(f"targets: box {made['boxes'][0].round().tolist()}, mask in columns {columns[0]} to {columns[-1]}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_photos(root)
        batches = {backend: list(loaders(root, backend)[0]) for backend in ("process", "thread")}
        images, labels = batches["process"][0]
        print(f"a batch: {images.dtype} {list(images.shape)}, labels {labels[:4].tolist()} ...")
        pairs = zip(*(batches[backend] for backend in ("process", "thread")), strict=True)
        same = all(torch.equal(one[0], other[0]) for one, other in pairs)
        print(f"the same pixels from processes and threads: {same}")
        print(f"accuracy after four epochs on {DEVICE.type}: {train_and_test(root):.0%}")
    mirror_with_targets()


if __name__ == "__main__":
    main()
