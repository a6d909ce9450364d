"""torchdata: StatefulDataLoader, stopped in mid-epoch and resumed; with an import ours in its place."""

import os

from reporting import DataLoader, Numbers, delivered, in_the_loop
from torchdata.stateful_dataloader import StatefulDataLoader

if __name__ == "__main__":
    kind = DataLoader if os.environ.get("IMPORTED_FROM") == "headrace" else StatefulDataLoader
    for workers in (0, 2):
        loader = kind(Numbers(), batch_size=4, num_workers=workers)
        in_the_loop(loader)
        iterator = iter(loader)
        for _ in range(3):
            delivered(next(iterator)[1])
        state = loader.state_dict()
        loader = kind(Numbers(), batch_size=4, num_workers=workers)
        loader.load_state_dict(state)
        for _, numbers in loader:
            delivered(numbers)
