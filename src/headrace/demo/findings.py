"""Scene: the loader names the slow stage, predicts what a change gains, and the change is made and measured."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult
from headrace.telemetry.digest import extend_digest
from headrace.telemetry.formatting import as_arguments

SAMPLES, BATCH = 320, 16
READING = TRAINING = 0.004


class Spectrograms(Dataset[torch.Tensor]):
    """Files of a slow disk, imitated by sleeping."""

    def __len__(self) -> int:
        return SAMPLES

    def read_file(self, key: int) -> np.ndarray:
        """Returns float32 [64, 64]."""
        time.sleep(READING)
        return np.random.default_rng(key).random((64, 64), np.float32)

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.from_numpy(np.abs(np.fft.rfft(self.read_file(key))).astype(np.float32))


def train(tell: Tell, change: dict[str, Any]) -> dict[str, Any]:
    """Trains an epoch with one worker, or with the change; returns what the loader says of it."""
    from headrace import DataLoader

    loader: Any = DataLoader(Spectrograms(), batch_size=BATCH, **{"num_workers": 1, **change})
    digest = 0
    for batch in loader:
        digest = extend_digest(digest, batch)
        time.sleep(TRAINING)

    diagnosis = loader.diagnose()
    told: dict[str, Any] = {"rate": loader.stats.samples_per_second, "digest": digest, "first": diagnosis.findings[:1]}
    for finding in diagnosis.findings:
        if "num_workers" in finding.change and finding.gain is not None:
            told["advised"] = finding
            break
    return told


def show() -> SceneResult:
    """Asks, changes, and asks again."""
    shown = SceneResult()
    before = run(train, {}).value
    if "advised" not in before:
        for finding in before["first"]:
            shown.add("headrace", f"{finding.sentence}\n{finding.advice}", facts=before["digest"])
        return shown

    advised = before["advised"]
    after = run(train, dict(advised.change)).value
    measured = after["rate"] / before["rate"]
    shown.add(
        "headrace",
        f"{advised.sentence}\n{as_arguments(advised.change)}: predicted {advised.gain:.1f} times as fast, measured "
        f"{measured:.1f} times",
        facts=after["digest"],
        figures={"predicted": advised.gain, "measured": measured},
    )
    return shown


SCENE = Scene("findings", "files from a slow disk, one worker: what to change, and what that gains", show)
