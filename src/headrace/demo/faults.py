"""Scene: a truncated JPEG in the folder, and a worker that the kernel kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.data.prepare.textures import texture
from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult

SAMPLES, BATCH = 40, 4
BATCHES = SAMPLES // BATCH
TRUNCATED, KILLS = 2, 21


class Pictures(Dataset[tuple[Tensor, int]]):
    """A folder of JPEGs, decoded by Pillow. One sample kills its worker, once, as the kernel does without memory."""

    def __init__(self, folder: str, kills: int | None) -> None:
        self.folder = Path(folder)
        self.kills = kills

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        if index == self.kills:
            with contextlib.suppress(FileExistsError):
                (self.folder / "killed").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        with Image.open(self.folder / f"{index}.jpg") as image:
            return torch.from_numpy(np.asarray(image.convert("RGB")).copy()), index


def load(tell: Tell, kind: str, folder: str, kills: int | None) -> dict[str, Any]:
    """Goes through an epoch; tells of each batch."""
    data = Pictures(folder, kills)
    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2}
    if kind == "torch":
        loader: Any = torch.utils.data.DataLoader(data, **arguments)
    else:
        from headrace import DataLoader, OnError

        log = Path(folder) / "bad.jsonl"
        loader = DataLoader(data, seed=0, on_error=OnError("replace", log=log), **arguments)

    for _images, keys in loader:
        tell(keys.tolist())
    if kind == "torch":
        return {}

    records = [json.loads(line) for line in log.read_text().splitlines()]
    return {"bad": loader.faults.bad, "restarts": loader.faults.restarts, "log": records}


def show() -> SceneResult:
    """Loads a folder with a truncated picture, and one whose worker is killed."""
    shown = SceneResult()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        for number in range(SAMPLES):
            texture(number).save(Path(folder) / f"{number}.jpg")
        whole = Path(folder, f"{TRUNCATED}.jpg").read_bytes()
        cut = Path(folder, f"{TRUNCATED}.jpg")

        killed = run(load, "torch", folder, KILLS)
        Path(folder, "killed").unlink()
        cut.write_bytes(whole[: len(whole) // 2])
        stopped = run(load, "torch", folder, None)
        survived = run(load, "headrace", folder, KILLS)

    shown.add(
        "torch",
        f"stopped after {len(stopped.told)} of {BATCHES} batches: {stopped.error}\n"
        f"stopped after {len(killed.told)} of {BATCHES} batches: {killed.error}",
        # Which error a dead worker is depends on where it was: it may have been handing over a batch.
        facts={"truncated": stopped.error, "killed": bool(killed.error)},
    )
    found = survived.value or {}
    delivered = sum(map(len, survived.told))
    shown.add(
        "headrace",
        f"{len(survived.told)} of {BATCHES} batches, {delivered} samples: {found.get('bad')} picture replaced "
        f"(named in bad.jsonl), {found.get('restarts')} worker restarted",
        facts={"batches": survived.told, "error": survived.error, **found},
    )
    return shown


SCENE = Scene("faults", "one truncated JPEG, and one worker killed by the kernel", show)
