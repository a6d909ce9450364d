"""Learns to read words off swipes over a keyboard: features made once, noise made anew in each epoch.

    python examples/trajectories/train.py                                   20 seconds, and the loss falls
    python examples/trajectories/train.py --folder swipes --trajectories 1000000 --epochs 5 --batches 2000
    python examples/trajectories/train.py --cut 0 --one-by-one              everything at each access, sample by sample

The list of steps is normalise, derivatives, tokens, noise. The first `--cut` of them are the `initial_transform`: made
once, for whole blocks of samples, and kept in a memory-mapped folder. The others are the `get_item_transform`: made
again at each access. Batches are the same wherever it is cut; what changes is the time that building and epochs take.
With `--folder`, data and cache stay there: the next start finds them, and opens them in milliseconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import augment
import features
import generate
import torch
from model import Reader, loss_of

import headrace


def steps(*, one_by_one: bool) -> list[Any]:
    """Returns the list of steps, declared: what draws random numbers, and what takes a whole block of samples."""
    if one_by_one:
        return [*features.ONE_BY_ONE, headrace.step(augment.noise, random=True)]
    made = [headrace.step(function, batched=True) for function in features.IN_BLOCKS]
    return [*made, headrace.step(augment.noise_all, batched=True, random=True)]


def staged(folder: Path, given: argparse.Namespace) -> headrace.Staged:
    """Returns the dataset: written if it is not there yet, and built up to the cache point if it was not built yet."""
    source = folder / f"swipes-{given.trajectories}"
    if not source.exists():
        generate.write(source, given.trajectories)
    todo, cut = steps(one_by_one=given.one_by_one), given.cut
    cache = folder / f"{source.name}-cut-{cut}" if cut else None
    return headrace.Staged(
        headrace.open(source), initial_transform=todo[:cut], get_item_transform=todo[cut:], cache=cache
    )


def train(loader: headrace.DataLoader, epochs: int) -> None:
    """Trains, and prints a line for each epoch."""
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for epoch in range(epochs):
        begun, losses, right = time.perf_counter(), [], []
        for batch in loader:
            loss, share = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            right.append(share.item())
        rate = len(losses) * loader.batch_size / (time.perf_counter() - begun)
        loss, share = sum(losses) / len(losses), sum(right) / len(right)
        print(f"epoch {epoch}: loss {loss:.3f}, letters right {share:4.0%}, {rate:,.0f} swipes/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=20_000, help="how many swipes to invent (20,000)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=60, help="batches of an epoch (60)")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--cut", type=int, default=3, choices=range(4), help="how many steps are made once (3: all but noise)"
    )
    parser.add_argument(
        "--one-by-one", action="store_true", help="the steps for one sample instead of those for blocks"
    )
    parser.add_argument("--workers", type=int, default=0, help="worker processes (0: batches this cheap need none)")
    parser.add_argument("--folder", type=Path, help="where data and cache stay (not given: nowhere)")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is too small for more
    with tempfile.TemporaryDirectory() as temporary:
        begun = time.perf_counter()
        data = staged(given.folder or Path(temporary), given)
        first = data[0]
        print(f"{len(data):,} swipes ready after {time.perf_counter() - begun:.2f} s; a sample holds")
        print("\n".join(f"  {name:<9} {value.dtype} {value.shape}" for name, value in first.items()))
        loader = headrace.DataLoader(
            data,
            batch_size=given.batch_size,
            shuffle=True,
            seed=0,
            num_workers=given.workers,
            batches_per_epoch=min(given.batches, len(data) // given.batch_size),
        )
        train(loader, given.epochs)


if __name__ == "__main__":
    main()
