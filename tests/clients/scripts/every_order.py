"""Gives loaders of every order to a framework, and says which samples each rank got of one epoch, or what was raised.

Started by torchrun, with the name of the framework as argument; for Ray Train without, as it starts its workers itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from orders import ORDERS, loader, tell, whole
from reporting import rank

Cell = Callable[[str], Iterable[Any]]
"""Gives an order's loader to a framework, and returns the batches that the framework trains with."""


def accelerate_cells() -> dict[str, Cell]:
    """Accelerate: `prepare`, with each of its ways to split."""
    from accelerate import Accelerator, DataLoaderConfiguration

    ways: dict[str, dict[str, Any]] = {
        "prepare": {},
        "even_batches=False": {"even_batches": False},
        "split_batches": {"split_batches": True},
        # The last one: only one rank asks for batches, and an error there is the end of the others.
        "dispatch_batches": {"dispatch_batches": True},
    }

    def prepared(options: dict[str, Any]) -> Cell:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        return lambda order: accelerator.prepare(loader(order))

    return {f"Accelerate, {way}": prepared(options) for way, options in ways.items()}


def fabric_cells() -> dict[str, Cell]:
    """Lightning's Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]))
    fabric.launch()
    return {"Fabric": lambda order: fabric.setup_dataloaders(loader(order))}


def lightning_cells() -> dict[str, Cell]:
    """Lightning's Trainer: what a module is trained, validated and tested with."""
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen: list[Any] = []

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen.append(batch)
            return self.layer(batch[0]).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.seen.append(batch)

        def predict_step(self, batch: Any, index: int) -> None:
            self.seen.append(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.001)

    def ran(use: str) -> Cell:
        def cell(order: str) -> list[Any]:
            lightning.seed_everything(3, verbose=False)  # the ranks must agree on how they shuffle
            trainer = lightning.Trainer(
                accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), num_nodes=1, max_epochs=1, logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            net = Net()
            getattr(trainer, use)(net, loader(order))
            return net.seen

        return cell

    return {f"Lightning, {use}": ran(use) for use in ("fit", "validate", "predict")}


def transformers_cells() -> dict[str, Cell]:
    """The Trainer of transformers: a subclass gives it the loader, as it is or prepared."""
    from transformers import Trainer, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, features: Any, numbers: Any) -> Any:
            return {"loss": self.layer(features).mean()}

    def ran(*, prepared: bool) -> Cell:
        def cell(order: str) -> list[Any]:
            seen = []

            class OwnLoader(Trainer):
                def get_train_dataloader(self) -> Any:
                    given: Any = loader(order)
                    if prepared:
                        given = self.accelerator.prepare(given)
                    return given

                def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
                    seen.append(inputs)
                    return super().training_step(model, {"features": inputs[0], "numbers": inputs[1]}, *more)

            with tempfile.TemporaryDirectory() as folder:
                arguments = TrainingArguments(
                    output_dir=folder, num_train_epochs=1, report_to=[], save_strategy="no", use_cpu=True,
                    disable_tqdm=True, logging_strategy="no",
                )  # fmt: skip
                OwnLoader(model=Net(), args=arguments).train()
            return seen

        return cell

    return {"transformers, own loader": ran(prepared=False), "transformers, prepared": ran(prepared=True)}


def ray_cells() -> dict[str, Cell]:
    """Ray Train, in one of its workers."""
    from ray.train.torch import prepare_data_loader

    return {"Ray Train": lambda order: prepare_data_loader(loader(order))}


CELLS = {
    "accelerate": accelerate_cells,
    "fabric": fabric_cells,
    "lightning": lightning_cells,
    "ray": ray_cells,
    "transformers": transformers_cells,
}


def numbers_of(batches: Iterable[Any]) -> Iterator[int]:
    """Yields the samples of batches."""
    for _, numbers in batches:
        yield from numbers.tolist()


def try_all(framework: str) -> list[dict[str, Any]]:
    """Returns what this rank saw of every order."""
    said = []
    for name, cell in CELLS[framework]().items():
        for order in ORDERS:
            seen: dict[str, Any] = {"cell": name, "order": order, "rank": rank(), "whole": whole(order)}
            try:
                seen["numbers"] = list(numbers_of(cell(order)))
            except Exception as error:  # noqa: BLE001 - whatever is raised is what there is to see
                seen["raised"] = f"{type(error).__name__}: {error}"
            said.append(seen)
    return said


def in_ray(ranks: int) -> None:
    """Runs the same in the workers of Ray Train, and says what they saw."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def work(folder: str) -> None:
        os.environ["RANK"] = str(ray.train.get_context().get_world_rank())
        Path(folder, f"{rank()}.json").write_text(json.dumps(try_all("ray")))

    ray.init("local", num_cpus=ranks + 1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            work, train_loop_config=folder, scaling_config=ScalingConfig(num_workers=ranks),
            run_config=RunConfig(storage_path=folder),
        ).fit()  # fmt: skip
        for path in Path(folder).glob("*.json"):
            for seen in json.loads(path.read_text()):
                tell(seen)
    ray.shutdown()


if __name__ == "__main__":
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if sys.argv[1] == "ray":
        in_ray(int(sys.argv[2]))
    else:
        for seen in try_all(sys.argv[1]):
            tell(seen)
