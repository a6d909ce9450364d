"""One rank of a process group: `python -m tests.loader.ranks_program RANK STORE KIND`. Prints what it saw."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed
from torch.utils.data import IterableDataset

from headrace import DataLoader, Shard
from headrace.core.errors import RanksDifferError
from headrace.samplers import DistributedSampler, PackedBatchSampler

SHORT, LONG = 40, 48


class Stream(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def packs(seed: int) -> DataLoader[int]:
    return DataLoader(list(range(SHORT)), batch_sampler=PackedBatchSampler([3] * SHORT, 8, seed=seed))


def odd() -> DataLoader[int]:
    sampler = DistributedSampler(SHORT + 1, uneven="keep", shuffle=False)
    return DataLoader(list(range(SHORT + 1)), batch_size=4, sampler=sampler)


def looked(rank: int) -> DataLoader[int]:
    loader = DataLoader(list(range(SHORT)), batch_size=4, shard="auto")
    if not rank:
        next(iter(loader))
    return loader


def numbered(loader: DataLoader[int]) -> DataLoader[int]:
    loader.set_epoch(0)
    return loader


LOADERS: dict[str, Callable[[int, int], DataLoader[int]]] = {
    "auto": lambda _, length: DataLoader(list(range(length)), batch_size=4, shard="auto"),
    "map": lambda _, length: DataLoader(list(range(length)), batch_size=4),
    "stream": lambda _, length: DataLoader(Stream(length), batch_size=4),
    "dealt": lambda *_: DataLoader(Stream(SHORT), batch_size=4, shard="auto"),
    "replica": lambda rank, _: DataLoader(list(range(SHORT)), batch_size=4, shard=Shard(0, 1), seed=rank),
    "keep": lambda *_: odd(),
    "packs": lambda *_: packs(0),
    "other packs": lambda rank, _: packs(rank),
    "looked": lambda rank, _: looked(rank),
    "looked, numbered": lambda rank, _: numbered(looked(rank)),
    "equal": lambda *_: DataLoader(list(range(SHORT)), batch_size=4),
    "portion": lambda _, length: DataLoader(list(range(length)), batch_size=4, batches_per_epoch=7),
}
"""By kind: makes the loader of a rank, of so many samples where the ranks are to differ."""


def main(rank: int, store: str, kind: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    loader = LOADERS[kind](rank, LONG if rank else SHORT)
    batches = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _ in loader:
                batches += 1
                if batches <= 2 and kind != "keep":
                    torch.distributed.barrier()  # a step that all take together
            said = [str(one.message) for one in caught]
        except RanksDifferError as error:
            said = ["RanksDifferError", str(error)]
    sys.stdout.write(f"{rank} {batches} {' '.join(said)}\n".replace("\n  ", " "))
    if kind not in ("auto", "replica"):
        torch.distributed.barrier()  # the store lives in rank 0
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
