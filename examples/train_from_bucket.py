"""Trains a small network on photographs in a bucket: `headrace.open` takes a URL where it takes a path.

    python examples/train_from_bucket.py s3://bucket/photos

The place, a URL or a folder, holds train/<class>/*.jpg and val/<class>/*.jpg, or what `headrace pack` made of each of
the two. Credentials are found where the tools of the store find them.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import headrace
from headrace.transforms import EvalImages, Normalize, TrainImages
from train_images import network  # beside this file


def loaders(place: str, size: int, batch_size: int, workers: int) -> tuple[headrace.DataLoader, headrace.DataLoader]:
    """The workers get the bytes of a photograph and write its pixels into the batch: uint8 [batch, 3, size, size]."""
    train = headrace.open(f"{place}/train", ["image", "label"], decode=False).map(TrainImages(size), on="image")
    val = headrace.open(f"{place}/val", ["image", "label"], decode=False).map(EvalImages(size, size), on="image")
    how = {"batch_size": batch_size, "num_workers": workers, "seed": 0, "persistent_workers": workers > 0}
    return headrace.DataLoader(train, shuffle=True, drop_last=True, **how), headrace.DataLoader(val, **how)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on photographs in a bucket or a folder.")
    parser.add_argument("place", help="URL or folder with train and val")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--size", type=int, default=224, help="side of the square images in pixels")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    train, val = loaders(args.place, args.size, args.batch_size, args.workers)
    model = network(args.classes)
    normalize = Normalize()  # batches travel as bytes
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        model.train()
        for batch in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(normalize(batch["image"])), batch["label"]).backward()
            optimizer.step()

        model.eval()
        right = 0
        seen = 0
        with torch.no_grad():
            for batch in val:
                right += int((model(normalize(batch["image"])).argmax(1) == batch["label"]).sum())
                seen += len(batch["label"])
        print(f"epoch {epoch}: accuracy {right / seen:.1%} in validation, {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
