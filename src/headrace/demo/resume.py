"""Scene: a run that is killed in the middle of an epoch, and started again from its last checkpoint."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.core.extras import has
from headrace.demo.party import PartyOutcome, Tell, run
from headrace.demo.scene import Scene, SceneResult
from headrace.telemetry.digest import extend_digest
from headrace.telemetry.formatting import some

SAMPLES, BATCH = 120, 8
STEPS = SAMPLES // BATCH
SAVED_AT, KILLED_AT = 4, 7
WORKERS = 2


class Noisy(Dataset[tuple[Tensor, int]]):
    """Samples with noise, such as every augmentation adds."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return index + torch.rand(16), index


def make_loader(kind: str, num_workers: int) -> Any:
    """Returns the loader of a kind: torch, torchdata or headrace."""
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": num_workers}
    if kind == "torch":
        return torch.utils.data.DataLoader(Noisy(), **arguments)
    if kind == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Noisy(), **arguments)

    from headrace import DataLoader

    return DataLoader(Noisy(), seed=0, **arguments)


def train(tell: Tell, kind: str, num_workers: int, checkpoint: str, killed_at: int = 0) -> None:
    """Goes through an epoch from the checkpoint, if there is one; tells of each batch its samples and a checksum."""
    loader = make_loader(kind, num_workers)
    step = 0
    if checkpoint and Path(checkpoint).exists():
        saved = torch.load(checkpoint)
        if "loader" in saved:
            loader.load_state_dict(saved["loader"])
            step = saved["step"]

    for values, keys in loader:
        step += 1
        tell((sorted(keys.tolist()), extend_digest(0, (values, keys))))
        if killed_at and step == SAVED_AT:
            saved = {"step": step}
            if kind != "torch":
                saved["loader"] = loader.state_dict()
            torch.save(saved, checkpoint)
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)


def show() -> SceneResult:
    """Runs each loader undisturbed, killed, and started again."""
    shown = SceneResult()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        for kind in ("torch", "torchdata", "headrace"):
            if kind == "torchdata" and not has("torchdata"):
                shown.add(kind, "not installed: pip install torchdata", facts=None)
                continue

            checkpoint = str(Path(folder) / f"{kind}.pt")
            whole = run(train, kind, WORKERS, "")
            killed = run(train, kind, WORKERS, checkpoint, KILLED_AT)
            others = [WORKERS, 3, 0]
            if kind == "torch":
                others = [WORKERS]
            again = {count: run(train, kind, count, checkpoint) for count in others}
            _add(shown, kind, whole, killed, again)
    return shown


def _add(
    shown: SceneResult, kind: str, whole: PartyOutcome, killed: PartyOutcome, again: dict[int, PartyOutcome]
) -> None:
    facts: dict[str, Any] = {"killed by": killed.signal, "steps": len(whole.told)}
    rest = whole.told[SAVED_AT:]
    for workers, outcome in again.items():
        facts[f"{workers} workers"] = outcome.error or _compared(outcome.told, rest)

    same = facts[f"{WORKERS} workers"]
    if kind == "torch":
        words = (
            f"starts the epoch again: {SAVED_AT + len(again[WORKERS].told)} steps instead of {STEPS}, "
            f"{SAVED_AT} batches twice"
        )
    else:
        words = f"{same[1]} of {len(rest)} batches equal"
        if same[0] != same[1]:
            words = f"{same[0]} of {len(rest)} batches of the same samples, {same[1]} with the same augmentation"
        for workers in again.keys() - {WORKERS}:
            words += f"\nwith {some(workers, 'worker')}: {_in_words(facts[f'{workers} workers'], len(rest))}"
    shown.add(kind, words, facts=facts)


def _in_words(found: str | tuple[int, int], expected: int) -> str:
    if isinstance(found, str):
        return found
    return f"{found[1]} of {expected} equal"


def _compared(found: Sequence[Any], expected: Sequence[Any]) -> tuple[int, int]:
    """Returns how many batches are of the samples that they should be of, and how many are equal."""
    pairs = list(zip(found, expected, strict=False))
    return sum(one[0] == other[0] for one, other in pairs), sum(one == other for one, other in pairs)


SCENE = Scene(
    "resume",
    f"killed in the middle of an epoch (kill -9 after step {KILLED_AT}, last checkpoint at step {SAVED_AT})",
    show,
)
