"""One rank of a group with a file of weights: `python -m tests.samplers.weights_program RANK STORE FILE`.

Prints its keys, and the state behind them.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch.distributed

from headrace.samplers import MixtureSampler


def main(rank: int, store: str, path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    sampler = MixtureSampler([500, 300], path, 400, window=100)
    iterator = iter(sampler)
    keys = []
    if rank == 0:
        # Two windows, and the third begins.
        keys = list(islice(iterator, 101))
        path.write_text("[0, 1]")

    torch.distributed.barrier()
    if rank == 1:
        # The three come as rank 0 read them; the fourth is read here first, and broken when rank 0 comes to it.
        keys = list(iterator)
        path.write_text("[")

    torch.distributed.barrier()
    keys += list(iterator)
    sys.stdout.write(json.dumps({"keys": keys, "state": sampler.state_dict()}) + "\n")
    torch.distributed.barrier()  # the store lives in rank 0
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
