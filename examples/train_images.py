"""Trains a small network on photographs, in plain PyTorch.

    python examples/train_images.py photos

The folder holds train/<class>/*.jpg and val/<class>/*.jpg.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class PhotoFolder(Dataset):
    """One sub-folder per class. Photographs come as float32 tensors [3, size, size], normalised."""

    def __init__(self, root: Path, size: int, augment: bool) -> None:
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.samples = [
            (path, label) for label, name in enumerate(self.classes) for path in sorted((root / name).glob("*.jpg"))
        ]
        self.size = size
        self.augment = augment

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        image = self.random_view(image) if self.augment else self.central_view(image)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), label

    def random_view(self, image: Image.Image) -> Image.Image:
        """A part of 40 to 100 % of the area, of shape 3:4 to 4:3, mirrored half of the time."""
        area = image.width * image.height * uniform(0.4, 1.0)
        aspect = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        width = min(math.sqrt(area * aspect), image.width)
        height = min(math.sqrt(area / aspect), image.height)
        left, top = uniform(0, image.width - width), uniform(0, image.height - height)
        box = (left, top, left + width, top + height)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if uniform(0, 1) < 0.5 else image

    def central_view(self, image: Image.Image) -> Image.Image:
        """The largest square in the middle."""
        side = min(image.width, image.height)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)


def uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def network(classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 8, stride=8, bias=False),  # patches of 8x8 pixels
        nn.BatchNorm2d(16),
        nn.ReLU(),
        block(16, 32),
        block(32, 64),
        block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Mean loss and accuracy over the epoch."""
    model.train()
    loss_sum, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels)
        correct += int((scores.argmax(1) == labels).sum())
        seen += len(labels)
    return loss_sum / seen, correct / seen


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct, seen = 0, 0
    for images, labels in loader:
        correct += int((model(images).argmax(1) == labels).sum())
        seen += len(labels)
    return correct / seen


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on photographs.")
    parser.add_argument("data", type=Path, help="folder with train/<class>/*.jpg and val/<class>/*.jpg")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--size", type=int, default=224, help="side of the square images in pixels")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    train_set = PhotoFolder(args.data / "train", args.size, augment=True)
    val_set = PhotoFolder(args.data / "val", args.size, augment=False)
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers
    )
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)
    if len(train_loader) == 0:
        raise SystemExit("there are fewer photographs than one batch: choose a smaller --batch-size")
    model = network(len(train_set.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    print(f"{len(train_set)} photographs of {len(train_set.classes)} classes, {len(val_set)} for validation")
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss, train_accuracy = train_one_epoch(model, train_loader, optimizer)
        val_accuracy = accuracy(model, val_loader)
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch}: loss {loss:.3f}, accuracy {train_accuracy:.1%} in training "
            f"and {val_accuracy:.1%} in validation, {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
