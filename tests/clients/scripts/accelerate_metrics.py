"""Prints the samples that `gather_for_metrics` of Accelerate returns over an epoch, on the first rank."""

from __future__ import annotations

import sys
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from process_group import leave_at_the_end
from torch.utils.data import BatchSampler, SequentialSampler

from headrace import DataLoader
from headrace.integrations.accelerate import prepare

if __name__ == "__main__":
    leave_at_the_end()
    accelerator = Accelerator(cpu=True)
    way, samples, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dataset = list(range(samples))
    arguments: dict[str, Any] = {"batch_size": batch_size, "shard": "auto"}
    if way == "split":
        batches = BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
        split = BatchSamplerShard(batches, accelerator.num_processes, accelerator.process_index)
        arguments = {"batch_sampler": split}
    gathered = []
    for batch in prepare(accelerator, DataLoader(dataset, **arguments)):
        gathered += accelerator.gather_for_metrics(batch).tolist()
    if accelerator.is_main_process:
        sys.stdout.write(f"gathered {' '.join(map(str, sorted(gathered)))}\n")
