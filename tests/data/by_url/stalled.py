"""Takes one batch of data elsewhere, stands still, and tells what the process that fetches holds meanwhile.

`python -m tests.data.by_url.stalled '{"source": ..., "options": {}, "cache": {}, "workers": 2, "seconds": 60}'` prints
JSON: `budget`, and `most` and `last`, the bytes by which the memory (PSS) of the trainer and of all that it started has
grown since they had read one sample.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from torch.utils.data import Subset

import headrace
from headrace.core.process.memory import memory_of
from headrace.storage.fetching.fetcher import default_budget
from tests.servers.parent import end_with_parent

EVERY = 0.25


def main() -> None:
    """Does what the argument says."""
    end_with_parent()
    given = json.loads(sys.argv[1])
    dataset = headrace.open(given["source"], options=given["options"] or None, **given["cache"])
    workers = given["workers"]
    warm = headrace.DataLoader(Subset(dataset, [0]), num_workers=workers, seed=0)
    assert len(list(warm)) == 1
    loader = headrace.DataLoader(
        dataset, batch_size=given["batch_size"], shuffle=given["shuffle"], seed=3, num_workers=workers
    )
    gc.collect()

    import os

    def pid() -> int:
        return warm._session.resources.remote.io_pid or os.getpid()

    before = memory_of([pid()])
    iterator = iter(loader)
    for _ in range(given["batches"]):
        next(iterator)
    most = last = 0
    until = time.monotonic() + given["seconds"]
    while time.monotonic() < until:
        time.sleep(EVERY)
        last = memory_of([pid()]) - before
        most = max(most, last)
    found = {"budget": default_budget(), "most": most, "last": last}
    found["bytes"] = loader.stats.remote.bytes
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
