"""Scene: the same seed with other numbers of workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult
from headrace.telemetry.digest import extend_digest

WORKERS = (0, 1, 3)


class Noise(Dataset[Tensor]):
    """Samples with noise, such as every augmentation adds."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(16)


def load(tell: Tell, kind: str, num_workers: int) -> int:
    """Returns the checksum of two epochs."""
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"batch_size": 20, "shuffle": True, "num_workers": num_workers}
    if kind == "torch":
        loader: Any = torch.utils.data.DataLoader(Noise(), **arguments)
    else:
        from headrace import DataLoader

        loader = DataLoader(Noise(), seed=0, **arguments)
    digest = 0
    for _ in range(2):
        for batch in loader:
            digest = extend_digest(digest, batch)
    return digest


def show() -> SceneResult:
    """Loads two epochs with each number of workers."""
    shown = SceneResult()
    for kind in ("torch", "headrace"):
        digests = [run(load, kind, count).value for count in WORKERS]
        count = len(set(digests))
        words = " ".join(f"{digest:08x}" for digest in digests)
        runs = "one run" if count == 1 else f"{count} different runs"
        shown.add(kind, f"{words}   {runs}", facts=digests)
    return shown


SCENE = Scene("seed", "the same seed with 0, 1 and 3 workers (checksums of all batches)", show)
