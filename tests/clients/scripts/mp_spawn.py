"""torch.multiprocessing.spawn: two ranks as spawned processes, which are given the loader."""

import os

import torch.multiprocessing as mp
from reporting import DataLoader, Numbers, delivered, in_the_loop


def work(rank, loader):
    """What a rank does."""
    os.environ["RANK"] = str(rank)
    in_the_loop(loader)
    for _, numbers in loader:
        delivered(numbers)


if __name__ == "__main__":
    mp.spawn(work, args=(DataLoader(Numbers(10), batch_size=4, num_workers=1),), nprocs=2)
