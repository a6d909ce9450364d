"""Ray Train: its workers save a `LoaderState` with a checkpoint of Ray's, and go on from it, on any ranks."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from resumed import GLOBAL_BATCH, Noisy, asked, steps, workers

import headrace
from headrace import DataLoader, LoaderState


def make_loader(batch_size: int, begun: int) -> DataLoader[Any]:
    """Makes headrace's loader; for a run that goes on, by `headrace.use()`."""
    words = {"batch_size": batch_size, "shuffle": True, "num_workers": workers(begun)}
    if not begun:
        return DataLoader(Noisy(), seed=3, shard="auto", **words)

    with headrace.use(seed=3, shard="auto"):
        loader = torch.utils.data.DataLoader(Noisy(), **words)
    assert isinstance(loader, DataLoader)
    return loader


def train(asked_for: dict[str, Any]) -> None:
    """Trains in one of Ray's workers."""
    stop = asked_for["stop"]
    begun = asked_for["begun"]
    folder = Path(asked_for["folder"])
    rank = ray.train.get_context().get_world_rank()
    os.environ["RANK"] = str(rank)
    torch.manual_seed(1)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = make_loader(asked_for["batch_size"], begun)
    if begun:
        saved = torch.load(folder / str(begun) / "state.pt", weights_only=True)
        LoaderState(loader).load_state_dict(saved["loader"])

    # What a worker prints comes to the driver on the way, and the last of it may be lost.
    with open(folder / f"told-{rank}", "w") as told:
        for step, (values, _) in steps(loader, begun, told.fileno()):
            model(values).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == stop:
                # All ranks gather their states; one of them saves.
                state = {"loader": LoaderState(loader).state_dict()}
                with tempfile.TemporaryDirectory() as place:
                    if rank == 0:
                        torch.save(state, Path(place, "state.pt"))
                    ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(place) if rank == 0 else None)
                break


if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    ranks = GLOBAL_BATCH // batch_size
    ray.init("local", num_cpus=ranks + 1, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        train, train_loop_config={"folder": folder, "stop": stop, "begun": begun, "batch_size": batch_size},
        scaling_config=ScalingConfig(num_workers=ranks), run_config=RunConfig(storage_path=f"{folder}/ray"),
    )  # fmt: skip
    result = trainer.fit()
    if stop:
        with result.checkpoint.as_directory() as place:
            shutil.copytree(place, f"{folder}/{stop}")
    for rank in range(ranks):
        sys.stdout.write(Path(folder, f"told-{rank}").read_text())
    ray.shutdown()
