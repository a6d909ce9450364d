"""Scene: JPEGs decoded, cropped at random and resized by two workers."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.core.extras import has
from headrace.data.prepare.textures import make_textures
from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult

COUNT, BATCH, SIZE = 500, 32, 176
STORED = 200
WORKERS = 2
EPOCHS = 2


class Photos(Dataset[tuple[Tensor, int]]):
    """The dataset that everyone writes: Pillow decodes, crops at random and resizes. uint8 [3, SIZE, SIZE]."""

    def __init__(self, folder: str) -> None:
        classes = sorted(Path(folder).iterdir())
        self.samples = [(path, label) for label, place in enumerate(classes) for path in sorted(place.iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        share, shape, right, down = torch.rand(4).tolist()
        area = image.width * image.height * (0.08 + 0.92 * share)
        ratio = math.exp((2 * shape - 1) * math.log(4 / 3))
        width = min(math.sqrt(area * ratio), image.width)
        height = min(math.sqrt(area / ratio), image.height)
        left, top = right * (image.width - width), down * (image.height - height)
        box = (left, top, left + width, top + height)
        view = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        return torch.from_numpy(np.asarray(view).copy()).permute(2, 0, 1), label


def load(tell: Tell, kind: str, folder: str) -> dict[str, Any]:
    """Returns the rate of the second epoch, and how many images of which classes came."""
    import headrace
    from headrace.transforms import TrainImages

    torch.set_num_threads(1)
    data: Any = Photos(folder) if kind in ("torch", "same Dataset") else None
    if kind == "TrainImages":
        data = headrace.ImageFolder(folder, TrainImages(SIZE))
    if kind == "packed":
        data = headrace.open(folder, ["image", "label"], decode=False).map(TrainImages(SIZE), on="image")

    make: Any = torch.utils.data.DataLoader if kind == "torch" else headrace.DataLoader
    loader = make(data, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    rate = 0.0
    for _ in range(EPOCHS):
        began = time.perf_counter()
        labels: list[int] = []
        for batch in loader:
            images, found = batch.values() if isinstance(batch, dict) else batch
            labels += found.tolist()
        rate = len(labels) / (time.perf_counter() - began)
    return {"rate": rate, "shape": list(images.shape[1:]), "classes": np.bincount(labels).tolist()}


def show() -> SceneResult:
    """Loads the photos in four ways."""
    from headrace.data.convert.pack import pack
    from headrace.data.convert.plan import PackOptions

    shown = SceneResult()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        root = Path(folder)
        make_textures(root / "photos", COUNT)
        pack(root / "photos" / "train", root / "packed", PackOptions(resize=STORED))
        for kind, party, place in (
            ("torch", "torch, Pillow", "photos/train"),
            ("same Dataset", "headrace, same Dataset", "photos/train"),
            ("TrainImages", "headrace, TrainImages", "photos/train"),
            ("packed", f"  packed at {STORED} px", "packed"),
        ):
            outcome = run(load, kind, str(root / place), memory=True)
            rate, peak = outcome.value.pop("rate"), outcome.peak_bytes
            each = outcome.cpu_seconds / EPOCHS / sum(outcome.value["classes"])
            shown.add(
                party,
                f"{rate:7,.0f} images/s, {each * 1e3:4.2f} s of CPU time for 1,000, {peak / 1e6:4.0f} MB",
                facts=outcome.value,
                figures={"samples_per_second": rate, "cpu_seconds": outcome.cpu_seconds, "peak_bytes": peak},
            )
    if not has("simplejpeg"):
        shown.add("", "TrainImages is faster with simplejpeg: pip install 'headrace[images]'")
    return shown


SCENE = Scene("photos", f"{COUNT} JPEGs of 500 x 375: decode, random crop, resize; {WORKERS} workers", show)
