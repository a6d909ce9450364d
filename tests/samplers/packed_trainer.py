"""Trains on packs under torchrun, saves a state at each step, goes on from the last one: `packed_trainer.py FOLDER 1`.

Each rank writes a line for each batch that it was trained with: the step, and the documents in their order.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed

import headrace
from headrace.errors import StateError
from headrace.samplers import PackedBatchSampler

DOCUMENTS = 600
LENGTHS = np.random.default_rng(3).integers(1, 90, DOCUMENTS)
ORDER: dict[str, Any] = {"budget": 256, "packs": 2, "balance": "attention", "window": 150, "seed": 5}


class Documents(torch.utils.data.Dataset[Any]):
    """Documents whose tokens are their own numbers."""

    def __len__(self) -> int:
        return DOCUMENTS

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"input_ids": np.full(LENGTHS[key], key)}


def documents_of(batch: dict[str, torch.Tensor]) -> list[int]:
    """Returns the documents of a batch, in their order."""
    begins = (batch["position_ids"] == 0) & (batch["document_ids"] >= 0)
    return batch["input_ids"][begins].tolist()  # type: ignore[no-any-return]


def main() -> None:
    """Trains to the end of the epoch."""
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    loader: Any = headrace.DataLoader(
        Documents(),
        batch_sampler=PackedBatchSampler(LENGTHS, **ORDER),
        collate_fn=headrace.collate_packed,
        num_workers=workers,
    )
    step = 0
    if (folder / "states").exists():
        try:
            state = headrace.merge_states(folder / "states")
        except StateError as error:
            # Killed before all ranks had saved a step.
            sys.stdout.write(f"from the beginning: {error}\n")
        else:
            loader.load_state_dict(state)
            step = state["step"]

    with (folder / f"trained-{rank}").open("a", buffering=1) as log:
        # Behind a line that a kill may have cut.
        log.write("\n" + json.dumps({"pid": os.getpid()}) + "\n")
        # A state of the last step is that of the next epoch's beginning.
        while step < len(loader):
            for batch in loader:
                step += 1
                log.write(json.dumps({"step": step, "documents": documents_of(batch)}) + "\n")
                torch.distributed.all_reduce(torch.ones(1))
                headrace.save_state(loader, folder / "states", step=step)
    torch.distributed.barrier()
    if rank == 0:
        (folder / "done").touch()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
