"""A training script that checkpoints, for tests that kill it: `python -m tests.sources.trainer settings.json`.

It goes on from the last checkpoint in its folder. A checkpoint holds the loader's state and the numbers of all samples
that were trained on until then, so the one behind the last batch must have each number once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

import headrace
from headrace.storage.fetching.io_client import IO_PROCESS


def ids_of(batch: object) -> list[int]:
    if isinstance(batch, dict):
        return [int(number) for number in batch["id"]]
    return [json.loads(bytes(value))["id"] for value in batch]  # type: ignore[attr-defined]


def write(path: Path, content: object) -> None:
    """Writes a file whole or not at all."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(content))
    unfinished.rename(path)


def train(settings: dict[str, object], folder: Path) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    opened = dict(settings["open"])
    if opened.get("journal") == "RANK":
        opened["journal"] = str(folder / f"journal-{rank}")
    data = headrace.follow(settings["uri"], **opened)
    loader = headrace.DataLoader(data, batch_size=settings["batch"] // ranks, **settings["loader"])
    checkpoint = folder / "checkpoint.json"
    trained: list[list[int]] = []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        trained = saved["trained"]
        loader.load_state_dict(saved["state"])

    batches = iter(loader)
    if loader.state_dict()["epoch"] > 0:
        # It was killed behind the checkpoint of its last batch: another epoch begins here.
        finish(folder, rank)
        return

    pids = [worker.pid for worker in getattr(batches, "_workers", [])]
    write(folder / f"pids-{rank}.json", {"trainer": os.getpid(), "workers": pids, "io": IO_PROCESS.get().pid})
    every = settings["checkpoint_every"]
    for step, batch in enumerate(batches, 1):
        trained.append(gathered(ids_of(batch), ranks))
        time.sleep(settings.get("step_seconds", 0))
        if step % every == 0:
            save(checkpoint, loader, trained, rank, ranks, commit=settings.get("commit", True))
            if step == settings.get("killed_behind"):
                os.kill(os.getpid(), signal.SIGKILL)

    save(checkpoint, loader, trained, rank, ranks)
    finish(folder, rank)


def finish(folder: Path, rank: int) -> None:
    """Tells that the training is through."""
    if rank == 0:
        (folder / "done").touch()


def gathered(ids: list[int], ranks: int) -> list[int]:
    """Returns the numbers of a batch of all ranks, in the order of one rank."""
    if ranks == 1:
        return ids
    parts: list[list[int]] = [[] for _ in range(ranks)]
    dist.all_gather_object(parts, ids)
    together = []
    for place in range(max(map(len, parts))):
        together += [part[place] for part in parts if place < len(part)]
    return together


def save(
    checkpoint: Path,
    loader: headrace.DataLoader,
    trained: list[list[int]],
    rank: int,
    ranks: int,
    *,
    commit: bool = True,
) -> None:
    state = loader.state_dict()
    if ranks > 1:
        states: list[object] = [None] * ranks
        dist.all_gather_object(states, state)
        state = headrace.merge_states(states)
    if rank == 0:
        write(checkpoint, {"state": state, "trained": trained})
        if commit:
            loader.commit(state)


def main() -> None:
    path = Path(sys.argv[1])
    settings = json.loads(path.read_text())
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    train(settings, path.parent)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
