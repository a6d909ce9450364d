"""monai: its own loader, a subclass of torch's; with an import ours and its collate function."""

import os

import torch
from monai.data import DataLoader as MonaiLoader
from monai.data import Dataset, list_data_collate
from monai.transforms import Compose, Lambdad
from reporting import DataLoader, delivered, in_the_loop


def as_tensor(number):
    """One transform, which spawned workers find."""
    return torch.tensor(number)


if __name__ == "__main__":
    steps = Compose([Lambdad(keys="number", func=as_tensor)])
    rows = Dataset([{"number": number} for number in range(18)], transform=steps)
    torch.manual_seed(9)
    if os.environ.get("IMPORTED_FROM") == "headrace":
        loader = DataLoader(rows, batch_size=4, shuffle=True, num_workers=2, collate_fn=list_data_collate)
    else:
        loader = MonaiLoader(rows, batch_size=4, shuffle=True, num_workers=2)
    in_the_loop(loader)
    for batch in loader:
        delivered(batch["number"])
